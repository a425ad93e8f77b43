"""Official checkpoints: every name of every preset, files that hold more than weights, and files that are broken."""

import pickle
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pixnerd import (
    PRESETS,
    TEXT_PRESETS,
    PixNerdPipeline,
    PixNerdScheduler,
    PixNerdTextToImagePipeline,
    PixNerdTextTransformer2DModel,
)
from pixnerd import PixNerdTransformer2DModel as Transformer
from pixnerd.cli import run
from pixnerd.convert import (
    from_official,
    pipeline_from_official,
    read_official,
    to_official,
    transformer_from_official,
    write_official,
)
from pixnerd.sampling import load_pipeline

from .conftest import random_text_transformer, random_transformer
from .runs import command, script


def official_names(preset: dict, text: bool) -> set[str]:
    """Names of the tensors of an official checkpoint of this size."""

    def layer(name: str, *kinds: str) -> set[str]:
        return {f"{name}.{kind}" for kind in kinds}

    def block(name: str, attention: tuple[str, ...], mlp: tuple[str, ...]) -> set[str]:
        names = layer(f"{name}.attn.proj", "weight", "bias") | layer(f"{name}.adaLN_modulation.0", "weight", "bias")
        norms = ("norm1", "norm2", "attn.q_norm", "attn.k_norm")
        return names | {f"{name}.{part}.weight" for part in (*norms, *attention, *mlp)}

    both = ("s_embedder.proj", "x_embedder.embedder.0", "t_embedder.mlp.0", "t_embedder.mlp.2", "final_layer.linear")
    names = set().union(*(layer(name, "weight", "bias") for name in both))
    fused, depth = ("mlp.w12", "mlp.w3"), preset["num_layers"]
    if text:
        names |= layer("y_embedder.proj", "weight", "bias") | {"y_embedder.norm.weight", "y_pos_embedding"}
        for i in range(preset["text_layers"]):
            names |= block(f"text_refine_blocks.{i}", ("attn.qkv",), fused)
        for i in range(depth):
            names |= block(f"blocks.{i}", ("attn.qkv_x", "attn.kv_y"), fused)
    else:
        names |= {"y_embedder.embedding_table.weight", "final_layer.norm.weight"}
        for i in range(depth):
            names |= block(f"blocks.{i}", ("attn.qkv",), ("mlp.w1", "mlp.w2", "mlp.w3"))
    for r in range(depth, depth + preset.get("head_layers", 2)):
        names |= layer(f"blocks.{r}.param_generator1.0", "weight", "bias") | {f"blocks.{r}.norm.weight"}
    return names


def official_state(transformer, text: bool) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors as the official code names and shapes them."""
    state = to_official(transformer.state_dict())
    assert state.keys() == official_names(dict(transformer.config), text)
    return state


@pytest.mark.parametrize("name", PRESETS)
def test_all_names_of_class_conditional_presets_convert_and_back(name):
    with torch.device("meta"):
        network = Transformer(**PRESETS[name])
        ours = from_official(dict.fromkeys(official_names(network.config, text=False), torch.empty(0)))
    assert ours.keys() == network.state_dict().keys()
    assert to_official(ours).keys() == official_names(network.config, text=False)


@pytest.mark.parametrize("name", TEXT_PRESETS)
def test_all_names_of_text_to_image_presets_convert_and_back(name):
    with torch.device("meta"):
        network = PixNerdTextTransformer2DModel(**TEXT_PRESETS[name])
        ours = from_official(dict.fromkeys(official_names(network.config, text=True), torch.empty(2, 1)))
    assert ours.keys() == network.state_dict().keys()
    assert to_official(ours).keys() == official_names(network.config, text=True)


@pytest.mark.parametrize(("name", "text"), [("XL/16", False), ("XXL/16", True)])
def test_a_preset_is_recognised_by_the_shapes_of_its_checkpoint(name, text):
    with torch.device("meta"):
        network = PixNerdTextTransformer2DModel(**TEXT_PRESETS[name]) if text else Transformer(**PRESETS[name])
        found = transformer_from_official(official_state(network, text), network.config.sample_size)
    described = [{k: v for k, v in n.config.items() if not k.startswith("_")} for n in (found, network)]
    assert described[0] == described[1]


def test_a_text_to_image_checkpoint_holds_the_first_two_matrices_of_an_mlp_in_one():
    network = random_text_transformer()
    official, mlp = official_state(network, text=True), network.blocks[1].mlp
    assert torch.equal(official["blocks.1.mlp.w12.weight"], torch.cat([mlp.w1.weight, mlp.w3.weight]))
    assert torch.equal(official["blocks.1.mlp.w3.weight"], mlp.w2.weight)


class Unknown:
    """Something that only the official code knows; running its reducer would be noticed."""

    def __init__(self) -> None:
        self.a = 1


class Evil:
    def __reduce__(self):
        return exec, ("import sys; sys.was_run = True",)


class Options(OrderedDict):
    pass


class Steps(list):
    pass


@pytest.mark.parametrize("wrapped", ["", "ema_denoiser", "denoiser", "ema_denoiser denoiser"])
def test_names_of_a_compiled_network_do_not_hide_the_averaged_weights(wrapped, tmp_path):
    averaged = official_state(random_transformer(), text=False)
    state = {}
    for prefix, change in (("denoiser", 1), ("ema_denoiser", 0)):
        wrapper = "_orig_mod." if prefix in wrapped.split() else ""
        state |= {f"{prefix}.{wrapper}{key}": tensor + change for key, tensor in averaged.items()}
    torch.save({"state_dict": state}, tmp_path / "model.ckpt")
    found = read_official(tmp_path / "model.ckpt")
    assert found.keys() == averaged.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in averaged.items())


@pytest.mark.parametrize("text", [False, True])
def test_a_lightning_checkpoint_gives_the_averaged_weights_once_and_runs_nothing(tmp_path, text, monkeypatch):
    network = random_text_transformer() if text else random_transformer()
    averaged = official_state(network, text)
    checkpoint = {
        "state_dict": {f"ema_denoiser.{key}": tensor for key, tensor in averaged.items()}
        | {f"denoiser._orig_mod.{key}": tensor + 1 for key, tensor in averaged.items()}
        | {"diffusion_trainer.proj.0.0.weight": torch.ones(2, 2)},
        "hyper_parameters": Options(model=Unknown(), nested=[Unknown(), {"b": Evil()}]),
        "callbacks": {"ema": Unknown(), "steps": Steps([1, 2]), "counts": defaultdict(int, a=1), "file": Path("a/b")},
    }
    file = tmp_path / "model.ckpt"
    torch.save(checkpoint, file)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=True)
    monkeypatch.delattr(sys, "was_run", raising=False)
    state = read_official(file)
    assert not hasattr(sys, "was_run")
    assert state.keys() == averaged.keys()
    assert all(torch.equal(state[key], averaged[key]) for key in state)

    pipeline = pipeline_from_official(file, 16, {0: "tench"})
    assert type(pipeline) is (PixNerdTextToImagePipeline if text else PixNerdPipeline)
    pipeline.save_pretrained(tmp_path / "converted")
    loaded = load_pipeline(tmp_path / "converted")
    x, t = torch.randn(2, 3, 16, 16), torch.rand(2)
    condition = torch.randn(2, 5, 16) if text else torch.tensor([0, 5])
    assert torch.equal(loaded.transformer(x, t, condition).sample, network(x, t, condition).sample)
    weights = load_file(tmp_path / "converted" / "transformer" / "diffusion_pytorch_model.safetensors")
    assert sum(w.numel() for w in weights.values()) == sum(p.numel() for p in network.parameters())
    shift, interval = (3.0, (0.0, 1.0)) if text else (1.0, (0.1, 1.0))
    assert loaded.scheduler.config.shift == shift and tuple(loaded.scheduler.config.guidance_interval) == interval

    write_official(loaded, tmp_path / "back.ckpt")
    again = torch.load(tmp_path / "back.ckpt", weights_only=True)["state_dict"]
    assert again.keys() == {f"ema_denoiser.{key}" for key in averaged}
    assert all(torch.equal(again[f"ema_denoiser.{key}"], averaged[key]) for key in averaged)


def test_weights_without_average_or_prefix_and_safetensors_are_read_too(tmp_path):
    state = official_state(random_transformer(), text=False)
    torch.save({f"denoiser.{key}": tensor for key, tensor in state.items()}, tmp_path / "a.pt")
    save_file(state, tmp_path / "b.safetensors")
    for file in ("a.pt", "b.safetensors"):
        found = read_official(tmp_path / file)
        assert found.keys() == state.keys() and all(torch.equal(found[key], state[key]) for key in state)


def test_broken_and_foreign_checkpoints_are_named(tmp_path):
    state = official_state(random_transformer(), text=False)
    file = tmp_path / "model.ckpt"
    torch.save({"state_dict": {f"ema_denoiser.{key}": tensor for key, tensor in state.items()}}, file)
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(OSError, match=r"checkpoint: .*cut\.ckpt cannot be read; fetch it again if it is not whole"):
        read_official(cut)
    save_file(state, tmp_path / "cut.safetensors")
    whole = (tmp_path / "cut.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match=r"cut\.safetensors cannot be read"):
        read_official(tmp_path / "cut.safetensors")
    with pytest.raises(OSError, match="checkpoint: no file"):
        read_official(tmp_path / "none.ckpt")
    torch.save({"weight": torch.ones(2)}, file)
    with pytest.raises(ValueError, match="holds no official PixNerd"):
        read_official(file)
    missing = {key: tensor for key, tensor in state.items() if key != "blocks.1.attn.k_norm.weight"}
    with pytest.raises(ValueError, match=r"1 tensors are missing, the first is blocks\.1\.attn\.k_norm\.weight"):
        transformer_from_official(missing, 16)
    with pytest.raises(ValueError, match="1 tensors are unknown, the first is surplus"):
        transformer_from_official(state | {"surplus": torch.ones(1)}, 16)
    with pytest.raises(ValueError, match=r"head\.norm\.weight: expected \(8,\), got \(9,\)"):
        transformer_from_official(state | {"final_layer.norm.weight": torch.ones(9)}, 16)
    with pytest.raises(ValueError, match=r"expected the tensors of an official PixNerd, 't_embedder|'final_layer"):
        transformer_from_official({"s_embedder.proj.weight": torch.ones(4, 48)}, 16)


def test_converting_there_and_back_from_the_command_line(tmp_path, monkeypatch, capsys):
    converter, network = script("convert"), random_transformer()
    write_official(PixNerdPipeline(network, PixNerdScheduler()), tmp_path / "model.ckpt")
    (tmp_path / "labels.json").write_text('["tench", "goldfish", "shark", "ray", "cock"]')

    def go(**values) -> None:
        monkeypatch.setattr(sys, "argv", ["convert.py", *command(values)])
        run(converter.main, converter.ConvertConfig)

    paths = dict(checkpoint=tmp_path / "model.ckpt", pipeline=tmp_path / "converted", sample_size=16)
    go(**paths, labels=tmp_path / "labels.json")
    converted = PixNerdPipeline.from_pretrained(tmp_path / "converted")
    assert converted.labels["goldfish"] == 1
    assert (converted.scheduler.config.solver, converted.scheduler.config.shift) == ("euler", 1.0)
    go(**paths | dict(checkpoint=tmp_path / "back.ckpt"), back=True)
    assert read_official(tmp_path / "back.ckpt").keys() == read_official(tmp_path / "model.ckpt").keys()
    (tmp_path / "labels.json").write_text('{"first": "tench"}')
    for wrong, message in [
        (dict(checkpoint=tmp_path / "none.ckpt"), "checkpoint: no file"),
        (dict(checkpoint=tmp_path / "model.ckpt"), "sample_size: expected 256 or 512"),
        (dict(checkpoint="hf:user/name"), "checkpoint: expected hf:USER/NAME/FILE, got hf:user/name"),
        (paths | dict(labels=tmp_path / "labels.json"), "labels: expected a list of names or a mapping from ids in"),
    ]:
        with pytest.raises(SystemExit):
            go(**wrong)
        assert f"convert.py: error: {message}" in capsys.readouterr().err


def test_a_text_to_image_checkpoint_is_of_512_pixels_unless_it_is_said_otherwise(tmp_path):
    pipeline = PixNerdTextToImagePipeline(random_text_transformer(), PixNerdScheduler())
    write_official(pipeline, tmp_path / "model.ckpt")
    converted = pipeline_from_official(tmp_path / "model.ckpt")
    assert converted.config.text_encoder_name == "Qwen/Qwen3-1.7B"
    sampler = converted.scheduler.config
    assert (sampler.solver, sampler.solver_order, sampler.shift) == ("adams", 2, 3.0)
    assert tuple(sampler.guidance_interval) == (0.0, 1.0)
    assert pipeline_from_official(tmp_path / "model.ckpt").transformer.config.sample_size == 512
    assert pipeline_from_official(tmp_path / "model.ckpt", 16).transformer.config.sample_size == 16


def test_a_checkpoint_of_the_hub_is_fetched(tmp_path, monkeypatch):
    file = tmp_path / "model.ckpt"
    write_official(PixNerdPipeline(random_transformer(), PixNerdScheduler()), file)
    asked = []
    monkeypatch.setattr("pixnerd.convert.hf_hub_download", lambda *args: asked.append(args) or str(file))
    assert read_official("hf:user/name/folder/model.ckpt").keys() == read_official(file).keys()
    assert asked == [("user/name", "folder/model.ckpt")]


def test_of_two_copies_in_a_safetensors_file_the_averaged_one_is_taken(tmp_path):
    """The layout of converted copies on the Hub, which hold the weights twice."""
    network = random_transformer()
    averaged = to_official(network.state_dict())
    copies = {f"denoiser.{key}": tensor + 1 for key, tensor in averaged.items()}
    copies |= {f"ema_denoiser.{key}": tensor for key, tensor in averaged.items()}
    save_file({key: tensor.contiguous() for key, tensor in copies.items()}, tmp_path / "model.safetensors")
    converted = pipeline_from_official(tmp_path / "model.safetensors", 16).transformer.state_dict()
    assert all(torch.equal(converted[name], tensor) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize(
    ("options", "scheduler", "message"),
    [
        ({"head_type": "linear"}, {}, "the official code has no network with a linear head"),
        ({"head_code": "sine"}, {}, "the official code has no network with head_code 'sine'"),
        ({"head_normalize": "none"}, {}, "the official code has no network with head_normalize 'none'"),
        ({}, {"prediction_type": "sample"}, "expected a network that predicts the velocity"),
    ],
)
def test_what_the_official_code_cannot_represent_is_not_written(options, scheduler, message, tmp_path):
    pipeline = PixNerdPipeline(random_transformer(**options), PixNerdScheduler(**scheduler))
    with pytest.raises(ValueError, match=message):
        write_official(pipeline, tmp_path / "model.ckpt")
    assert not (tmp_path / "model.ckpt").exists()
