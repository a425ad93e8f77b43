import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import pixnerd.transformer as transformer_module
from pixnerd import PixNerdPipeline, PixNerdScheduler, pictures
from pixnerd.card import model_card
from pixnerd.pictures import grid
from pixnerd.pipeline import to_bytes
from pixnerd.remote_code import bundle
from pixnerd.sampling import sample_many

from .conftest import SAVED_FILES, NoFloat64, path_without_this_package, random_transformer

NAMES = {0: "tench, Tinca tinca", 1: "goldfish", 2: "shark", 3: "ray", 4: "cock"}


@pytest.fixture
def pipeline(transformer) -> PixNerdPipeline:
    pipeline = PixNerdPipeline(transformer, PixNerdScheduler(), id2label=NAMES)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def sample(pipeline, labels, seed: int = 0, **options):
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(labels))]
    options = {"num_inference_steps": 4, "output_type": "latent"} | options
    return pipeline(labels, generator=generators, **options).images


def test_guidance_of_one_is_the_conditional_prediction(pipeline):
    labels = [0, 3]
    plain = sample(pipeline, labels, guidance_scale=1.0)
    pipeline.scheduler.set_timesteps(4)
    x = torch.cat([torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(i)) for i in (0, 1)])
    with torch.no_grad():
        for t in pipeline.scheduler.timesteps:
            x = x + 0.25 * pipeline.transformer(x, t.expand(2), torch.tensor(labels)).sample
    assert torch.allclose(plain, x, atol=1e-5)
    nearly = sample(pipeline, labels, guidance_scale=1 + 1e-6)  # by both branches, where 1 takes one
    assert torch.allclose(plain, nearly, atol=1e-4)


def test_guidance_leads_from_no_class_to_the_class_inside_the_interval_only(pipeline):
    out = sample(pipeline, [2], guidance_scale=3.0, guidance_interval=(0.3, 0.7))
    x, null = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.tensor([5])
    with torch.no_grad():
        for t in torch.tensor([0.0, 0.25, 0.5, 0.75]):
            v = pipeline.transformer(x, t[None], torch.tensor([2])).sample
            if 0.3 < t < 0.7:
                v_null = pipeline.transformer(x, t[None], null).sample
                v = v_null + 3 * (v - v_null)
            x = x + 0.25 * v
    assert torch.allclose(out, x, atol=1e-4)


def test_guidance_enters_the_history_of_adams(pipeline):
    pipeline.scheduler = PixNerdScheduler(solver="adams")
    out = sample(pipeline, [2], guidance_scale=3.0, guidance_interval=(0.2, 0.6))
    x, before = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)), None
    with torch.no_grad():
        for t in torch.tensor([0.0, 0.25, 0.5, 0.75]):
            v = pipeline.transformer(x, t[None], torch.tensor([2])).sample
            if 0.2 < t < 0.6:
                v_null = pipeline.transformer(x, t[None], torch.tensor([5])).sample
                v = v_null + 3 * (v - v_null)
            x = x + 0.25 * (v if before is None else 1.5 * v - 0.5 * before)
            before = v
    assert torch.allclose(out, x, atol=1e-4)


def test_outside_the_interval_the_second_branch_is_not_evaluated(pipeline):
    batches = []
    handle = pipeline.transformer.patch_embed.register_forward_hook(lambda m, args, out: batches.append(len(out)))
    sample(pipeline, [2], num_inference_steps=10, guidance_scale=3.0)
    handle.remove()
    assert batches == [1, 1] + [2] * 8  # t = 0 and t = 0.1 are unguided


def test_a_negative_class_takes_the_place_of_no_class(pipeline):
    out = sample(pipeline, [2, 1], negative_class_labels="shark", guidance_scale=3.0)
    alone = sample(pipeline, [2, 1], guidance_scale=1.0)
    other = sample(pipeline, [2, 1], guidance_scale=3.0)
    assert torch.allclose(out[0], alone[0], atol=1e-5)  # away from itself: no guidance
    assert not torch.allclose(out[1], other[1], atol=1e-3)


def test_names_and_synonyms_are_ids(pipeline):
    expected = sample(pipeline, [0, 4])
    for labels in (["Tinca tinca", "cock"], ["tench, Tinca tinca", np.int64(4)], torch.tensor([0, 4])):
        assert torch.equal(sample(pipeline, labels), expected)


def test_an_image_does_not_depend_on_its_batch(pipeline):
    assert torch.allclose(sample(pipeline, [0, 1, 2])[1:2], sample(pipeline, [1], seed=1), atol=1e-5)


def test_a_bfloat16_network_is_given_float32_times_angles_and_noise(pipeline, monkeypatch):
    dtypes, states = [], []
    original, step = transformer_module.rotary_angles, pipeline.scheduler.step
    pipeline.transformer.bfloat16()

    def angles(*args, dtype, **kwargs):
        dtypes.append(dtype)
        return original(*args, dtype=dtype, **kwargs)

    monkeypatch.setattr(transformer_module, "rotary_angles", angles)
    pipeline.transformer.time_embed.register_forward_pre_hook(lambda module, args: dtypes.append(args[0].dtype))
    monkeypatch.setattr(pipeline.scheduler, "step", lambda v, t, x, **kw: (states.append(x), step(v, t, x, **kw))[1])
    noise = torch.randn(1, 3, 16, 16)
    pipeline([0], latents=noise, num_inference_steps=2)
    assert set(dtypes) == {torch.float32} and torch.equal(states[0], noise)


def test_bytes_are_rounded_and_bounded():
    values = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0, 0.2 / 127.5 - 1, 0.6 / 127.5 - 1])
    assert to_bytes(values).tolist() == [0, 0, 128, 255, 255, 0, 1]


def test_the_state_is_float32_under_a_bfloat16_network(pipeline):
    states = []
    pipeline.transformer.bfloat16()

    def keep(pipe, step, t, tensors):
        states.append(tensors["latents"])

    out = sample(pipeline, [0], callback_on_step_end=keep)
    assert {state.dtype for state in [*states, out]} == {torch.float32}
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("solver", ["euler", "adams", "sde"])
def test_sampling_makes_no_float64(pipeline, solver):
    pipeline.scheduler = PixNerdScheduler(solver=solver, shift=2.0, prediction_type="sample")
    with NoFloat64():
        sample(pipeline, [0, "shark"], height=32, width=32, encoder_size=16)


def test_pictures_in_four_forms(pipeline):
    raw = sample(pipeline, [0, 1])
    arrays = sample(pipeline, [0, 1], output_type="np")
    pictures = sample(pipeline, [0, 1], output_type="pil")
    expected = to_bytes(raw).permute(0, 2, 3, 1).numpy()
    assert np.array_equal(np.stack([np.asarray(p) for p in pictures]), expected)
    assert np.array_equal(np.round(arrays * 255).astype(np.uint8), expected)
    tensors = sample(pipeline, [0, 1], output_type="pt")
    assert np.array_equal((tensors * 255).round().byte().permute(0, 2, 3, 1).numpy(), expected)


def test_a_larger_picture_by_more_tokens_or_by_a_finer_field(pipeline):
    tokens = []
    handle = pipeline.transformer.blocks[0].register_forward_hook(lambda m, args, out: tokens.append(out.shape[1]))
    assert sample(pipeline, [0], height=32, width=16).shape == (1, 3, 32, 16)
    assert sample(pipeline, [0], height=32, width=32, encoder_size=16).shape == (1, 3, 32, 32)
    assert sample(pipeline, [0], height=24, width=8, encoder_size=(16, 16)).shape == (1, 3, 24, 8)
    handle.remove()
    assert tokens[0] == 32 and tokens[-1] == 16


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([7], {}, r"class_labels: expected 0\.\.4 \(5 for no class\) or one of tench, .*, got 7"),
        (["salmon"], {}, "got 'salmon'"),
        ([], {}, "got an empty list"),
        ([0], {"negative_class_labels": [0, 1]}, "negative_class_labels: expected 1 or 1 labels, got 2"),
        ([0], {"negative_class_labels": ["salmon"]}, "negative_class_labels: .* got 'salmon'"),
        ([0], {"output_type": "jpg"}, 'output_type: expected "pil", "np", "pt" or "latent"'),
        ([0], {"callback_on_step_end_tensor_inputs": ["prompt"]}, r"expected \['latents'\], got \['prompt'\]"),
        ([0], {"height": 32, "width": 32, "encoder_size": 0}, "encoder_size, height: expected a multiple of"),
        ([0], {"guidance_interval": (0.9, 0.1)}, "guidance_interval"),
        ([0], {"guidance_scale": -1.0}, "guidance_scale"),
        ([0], {"guidance_scale": float("nan")}, "guidance_scale"),
        ([0], {"height": -32}, "height, width: expected at least 1, got -32, 16"),
        ([0], {"height": 18}, "height: expected a multiple of the patch size 4, got 18"),
        ([0], {"latents": torch.zeros(1, 3, 8, 8)}, r"latents: expected \(1, 3, 16, 16\), got \(1, 3, 8, 8\)"),
        ([0], {"num_inference_steps": 0}, "num_inference_steps: expected at least 1"),
    ],
)
def test_bad_requests_are_refused(pipeline, labels, options, message):
    with pytest.raises(ValueError, match=message):
        pipeline(labels, **({"num_inference_steps": 1} | options))


# Saving and loading

IN_A_NEW_PROCESS = """
import sys, torch
{imports}
pipeline = {load}
pipeline.set_progress_bar_config(disable=True)
generators = [torch.Generator().manual_seed(i) for i in range(2)]
images = pipeline(["goldfish", 4], generator=generators, num_inference_steps=4, output_type="latent").images
assert type(pipeline).__module__.startswith("{module}"), type(pipeline).__module__
torch.save(images, sys.argv[2])
"""


def run_in_a_new_process(tmp_path: Path, folder: Path, script: str, package: bool) -> torch.Tensor:
    """Images from a process with or without this package on its path."""
    source = str(Path(__file__).parents[1] / "src")
    path = source if package else path_without_this_package(tmp_path)
    environment = os.environ | {
        "PYTHONPATH": path,
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
        "HF_HUB_OFFLINE": "1",
    }
    result = tmp_path / "images.pt"
    command = [sys.executable, "-c", script, str(folder), str(result)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return torch.load(result)


@pytest.mark.parametrize("prediction_type", ["velocity", "sample"])
def test_a_saved_pipeline_gives_the_same_pictures_in_a_new_process(pipeline, tmp_path, prediction_type):
    pipeline.scheduler = PixNerdScheduler(solver="adams", prediction_type=prediction_type)
    expected = sample(pipeline, ["goldfish", 4])
    folder = tmp_path / "a model, gespeichert für später"
    pipeline.save_pretrained(folder)
    script = IN_A_NEW_PROCESS.format(
        imports="from pixnerd import PixNerdPipeline",
        load="PixNerdPipeline.from_pretrained(sys.argv[1])",
        module="pixnerd",
    )
    assert torch.equal(run_in_a_new_process(tmp_path, folder, script, package=True), expected)


def test_a_saved_pipeline_works_where_this_package_is_not(pipeline, tmp_path):
    expected = sample(pipeline, ["goldfish", 4])
    folder = tmp_path / "model"
    pipeline.save_pretrained(folder)
    script = IN_A_NEW_PROCESS.format(
        imports="from diffusers import DiffusionPipeline",
        load="DiffusionPipeline.from_pretrained(sys.argv[1], trust_remote_code=True)",
        module="diffusers_modules",
    )
    assert torch.equal(run_in_a_new_process(tmp_path, folder, script, package=False), expected)


def test_a_pipeline_loaded_without_this_package_can_be_saved_again(pipeline, tmp_path):
    folder = tmp_path / "model"
    pipeline.save_pretrained(folder)
    script = """
import sys, torch
from diffusers import DiffusionPipeline
pipeline = DiffusionPipeline.from_pretrained(sys.argv[1], trust_remote_code=True)
pipeline.save_pretrained(sys.argv[1] + "-again")
torch.save(torch.zeros(1), sys.argv[2])
"""
    run_in_a_new_process(tmp_path, folder, script, package=False)
    again = tmp_path / "model-again"
    for file in ("model_index.json", "pixnerd_pipeline.py", "transformer/pixnerd_transformer.py"):
        assert (again / file).read_text() == (folder / file).read_text()


def test_the_saved_folder_is_whole_and_holds_the_weights_once(pipeline, tmp_path):
    pipeline.save_pretrained(tmp_path)
    model_card(pipeline, "user/name", "openmoji", 10).save(tmp_path / "README.md")
    names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert names == SAVED_FILES
    index = json.loads((tmp_path / "model_index.json").read_text())
    assert index["_class_name"] == ["pixnerd_pipeline", "PixNerdPipeline"]
    assert index["transformer"] == ["pixnerd_transformer", "PixNerdTransformer2DModel"]


def test_the_cards_snippet_runs(pipeline, tmp_path):
    pipeline.save_pretrained(tmp_path / "pixnerd")
    card = model_card(pipeline, "user/name", "openmoji", 10)
    assert card.data.license == "cc-by-sa-4.0" and "OpenMoji" in card.text
    assert model_card(pipeline, "user/name", "my/folder", 10).data.license == "other"
    snippet = model_card(pipeline, str(tmp_path / "pixnerd"), "openmoji", 10).text.split("```python")[1].split("```")[0]
    scope: dict = {}
    exec(snippet.replace("num_inference_steps=25", "num_inference_steps=2"), scope)
    assert all(isinstance(image, Image.Image) for image in scope["images"]) and len(scope["images"]) == 4


def test_bundled_code_has_no_relative_import_left():
    module = Path(__file__).parents[1] / "src" / "pixnerd" / "transformer.py"
    code = bundle(module)
    assert "from ." not in code
    assert code.count("class RMSNorm") == 1 and code.count("def at_least_float32") == 1
    compile(code, "bundled", "exec")


def test_bundling_refuses_what_it_cannot_inline(tmp_path):
    (tmp_path / "a.py").write_text("from .b import c as d\n")
    with pytest.raises(ValueError, match=r"a\.py:1: expected `from \.module import name`"):
        bundle(tmp_path / "a.py")


def test_a_folder_without_a_pipeline_is_named(tmp_path):
    with pytest.raises(OSError, match="no whole PixNerdPipeline there"):
        PixNerdPipeline.from_pretrained(tmp_path)


def test_a_mistyped_folder_is_named_at_once_and_damage_is_told(pipeline, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipeline.save_pretrained("outputs/model")
    for name in ("outputs/modle", "model", "/no/such/place"):
        with pytest.raises(OSError, match=f"{name}: no such folder, and not a Hub repository"):
            PixNerdPipeline.from_pretrained(name)
    weights = Path("outputs/model/transformer/diffusion_pytorch_model.safetensors")
    state = load_file(weights)
    save_file({key: tensor for key, tensor in state.items() if key != "patch_embed.bias"}, weights)
    with pytest.raises(OSError, match="weights missing or too many: patch_embed.bias"):
        PixNerdPipeline.from_pretrained("outputs/model")
    save_file(state, weights)
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(OSError, match="outputs/model: no whole PixNerdPipeline there"):
        PixNerdPipeline.from_pretrained("outputs/model")


def test_half_precision_is_asked_for_by_torch_dtype(pipeline, tmp_path):
    pipeline.save_pretrained(tmp_path)
    loaded = PixNerdPipeline.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    assert loaded.transformer.dtype == torch.bfloat16


def test_components_can_be_given_and_unknown_arguments_are_named(pipeline, tmp_path):
    pipeline.save_pretrained(tmp_path)
    scheduler = PixNerdScheduler(solver="adams")
    loaded = PixNerdPipeline.from_pretrained(tmp_path, scheduler=scheduler, trust_remote_code=True, variant=None)
    assert loaded.scheduler is scheduler
    with pytest.raises(ValueError, match="from_pretrained: unexpected arguments vae"):
        PixNerdPipeline.from_pretrained(tmp_path, vae=None)


def test_a_subclass_loads_as_itself(pipeline, tmp_path):
    pipeline.save_pretrained(tmp_path)
    mine = type("Mine", (PixNerdPipeline,), {"__module__": "__main__"})
    assert type(mine.from_pretrained(tmp_path)) is mine


def test_many_samples_do_not_depend_on_the_batch_size(pipeline):
    one, many = (sample_many(pipeline, [0, 1, 2, 3], 5, size, False, num_inference_steps=2) for size in (1, 3))
    assert (one.int() - many.int()).abs().max() <= 1 and one.dtype == torch.uint8
    assert torch.equal(many[:1], to_bytes(sample(pipeline, [0], seed=5, num_inference_steps=2)))


def test_a_linear_head_is_saved_and_loaded_too(tmp_path):
    pipeline = PixNerdPipeline(random_transformer(head_type="linear"), PixNerdScheduler())
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(tmp_path)
    loaded = PixNerdPipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    assert torch.equal(sample(loaded, [0, 1]), sample(pipeline, [0, 1]))


def test_a_sheet_shows_each_image_at_its_place():
    images = torch.zeros(3, 3, 4, 4, dtype=torch.uint8)
    images[1, 0] = 200
    sheet = np.asarray(grid(images, columns=2, scale=2, gap=1))
    assert sheet.shape == (19, 19, 3)
    assert (sheet[1:9, 1:9] == 0).all() and (sheet[1:9, 10:18] == [200, 0, 0]).all()
    assert (sheet[10:18, 10:18] == 255).all()  # no fourth image


@pytest.mark.parametrize("there", [True, False])
def test_names_beside_pictures_have_their_umlauts_or_lose_them(there, monkeypatch):
    if there and pictures.font() is None:
        pytest.skip("matplotlib is not installed")
    if not there:
        monkeypatch.setattr(pictures, "font", lambda: None)
    images = torch.zeros(1, 3, 20, 20, dtype=torch.uint8)
    with_umlaut, without, box = (np.asarray(grid(images, 1, row_names=[n])) for n in ("Käse", "Kase", "K\ue000se"))
    assert np.array_equal(with_umlaut, without) == (not there)
    assert not np.array_equal(with_umlaut, box)  # what no font has
