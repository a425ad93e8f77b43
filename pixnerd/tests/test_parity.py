"""Numbers of the official code on random weights, where they are at hand (reference numbers, not distributed)."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from pixnerd import PixNerdScheduler
from pixnerd.alignment import Projector, dispersive_loss, repa_loss, teacher_input
from pixnerd.convert import config_of, from_official, transformer_from_official
from pixnerd.data import center_crop, to_float
from pixnerd.ema import EMA
from pixnerd.embeddings import rotary_angles, rotate, time_features
from pixnerd.flow import LOSS_WEIGHTS, interpolate, lognormal_time, shift_time, velocity_loss
from pixnerd.layers import patchify
from pixnerd.neural_field import cosine_code, dct_code
from pixnerd.objective import Objective
from pixnerd.pipeline import to_bytes
from pixnerd.scheduler import adams_coefficients
from pixnerd.text_transformer import PixNerdTextTransformer2DModel
from pixnerd.transformer import PixelTransformer

KINDS = {"class_conditional", "text_to_image", "tables", "samplers", "training", "ema", "pixels"}
PRECISIONS = {"out": torch.float32, "out64": torch.float64}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def find_cases() -> list[tuple[str, str, Path]]:
    """Kind, name and file of every case: one lies in this repository, the others where PARITY_DATA says."""
    folders = [Path(__file__).parent / "fixtures" / "parity"]
    if os.environ.get("PARITY_DATA"):
        folders.append(Path(os.environ["PARITY_DATA"]) / "pixnerd")
    files = {file.stem: file for folder in folders for file in sorted(folder.glob("*.json"))}
    return [(json.loads(file.read_text())["kind"], name, file) for name, file in files.items()]


def of_kind(*kinds: str):
    """A test for each case of these kinds; skipped where there is none."""
    return pytest.mark.parametrize("file", [pytest.param(f, id=name) for k, name, f in find_cases() if k in kinds])


class Case:
    """Tensors and configuration of one case."""

    def __init__(self, file: Path) -> None:
        self.config = json.loads(file.read_text())["config"]
        self.tensors = load_file(file.with_suffix(".safetensors"))

    def input(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        tensor = self.tensors[f"in.{name}"]
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    def weights(self, prefix: str = "weights.") -> dict[str, torch.Tensor]:
        return {key.removeprefix(prefix): t for key, t in self.tensors.items() if key.startswith(prefix)}

    def check(self, precision: str, name: str, ours: torch.Tensor, tolerance: float | None = None) -> None:
        """Compare with the reference where this precision has one."""
        reference = self.tensors.get(f"{precision}.{name}")
        if reference is None:
            assert precision in ("out64", "grad64"), f"{precision}.{name} is missing from the case"
            return
        tolerance = tolerance or TOLERANCE[torch.float64 if precision.endswith("64") else torch.float32]
        ours = ours.detach().double().reshape(reference.shape)
        error = (ours - reference.double()).abs().max().item()
        assert error <= tolerance * max(reference.abs().max().item(), 1e-30), f"{name}: {error:.3g}"


def network(config: dict, weights: dict, dtype: torch.dtype) -> PixelTransformer:
    """The network of an official state; its shape, read off the state, is the one that the case names."""
    assert config_of(weights, 4 * config["patch_size"]) | described(config) == config_of(
        weights, 4 * config["patch_size"]
    )
    return transformer_from_official(weights, 4 * config["patch_size"]).to(dtype)


def described(config: dict) -> dict:
    """Our options by the words of a case."""
    words = dict(patch_size="patch_size", channels="in_channels", hidden_size="hidden_size")
    words |= dict(num_heads="num_attention_heads", dit_blocks="num_layers", image_blocks="num_layers")
    words |= dict(nerf_blocks="head_layers", nerf_channels="head_channels", nerf_mlp_ratio="head_mlp_ratio")
    words |= dict(dct_frequencies="head_frequencies", num_classes="num_classes", text_refine_blocks="text_layers")
    words |= dict(text_feature_dim="text_dim", text_length="text_length")
    return {ours: config[theirs] for theirs, ours in words.items() if theirs in config}


def ours_by_official_name(transformer: PixelTransformer, official: dict) -> dict[str, list[torch.nn.Parameter]]:
    """Our parameters that hold each official tensor, by the official names: two for a w12, else one."""
    numbered = {key: torch.full_like(tensor, float(n)) for n, (key, tensor) in enumerate(official.items())}
    parameters, found = dict(transformer.named_parameters()), {key: [] for key in official}
    for ours, tensor in from_official(numbered).items():
        found[list(official)[int(tensor.flatten()[0])]].append(parameters[ours])
    return found


def test_every_kind_of_case_is_run():
    if not (os.environ.get("PARITY_DATA") or os.environ.get("REQUIRE_PARITY")):
        pytest.skip("PARITY_DATA is not set: only the case of this repository was compared")
    assert {kind for kind, *_ in find_cases()} == KINDS


@pytest.mark.parametrize(
    "file", [pytest.param(f, id=n) for k, n, f in find_cases() if k.startswith(("class_", "text_"))]
)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_network(file, precision):
    case, dtype = Case(file), PRECISIONS[precision]
    config, grad = case.config, precision.replace("out", "grad")
    transformer = network(config, case.weights(), dtype)
    assert sum(p.numel() for p in transformer.parameters()) == config["parameters"]
    ours = ours_by_official_name(transformer, case.weights())
    kind = "y" if "num_classes" in config else "text"
    for number, run in enumerate(config["runs"]):
        suffix, t = run["suffix"], case.input("t", dtype).requires_grad_()
        x, condition = case.input(f"x{suffix}", dtype).requires_grad_(), case.input(kind, dtype).clone()
        base = (config["base_height"], config["base_width"]) if kind == "text" else None
        if kind == "text":
            condition.requires_grad_()
        transformer.zero_grad()
        v = transformer(x, t, condition, encoder_size=base).sample
        case.check(precision, f"v{suffix}", v)
        (v * case.input(f"cotangent{suffix}", dtype)).sum().backward()
        case.check(grad, f"x{suffix}", x.grad)
        if kind == "text":
            case.check(grad, f"text{suffix}", condition.grad)
        if number == 0:
            case.check(grad, "t", t.grad)
            for key in case.tensors:
                name = key.removeprefix(f"{grad}.")
                if key.startswith(f"{grad}.") and name in ours:
                    case.check(grad, name, torch.cat([p.grad for p in ours[name]]))
            if kind == "text":
                cut = condition.detach()[:1].clone()
                cut[:, -2:] = 0
                v = transformer(x[:1], t[:1], cut, encoder_size=base).sample
                case.check(precision, "v_text_tail_zero", v)


@pytest.mark.parametrize(
    "file", [pytest.param(f, id=n) for k, n, f in find_cases() if k.startswith(("class_", "text_"))]
)
def test_intermediates(file):
    case = Case(file)
    transformer = network(case.config, case.weights(), torch.float32)
    config, suffix = case.config, case.config["runs"][0]["suffix"]
    x, t = case.input(f"x{suffix}", torch.float32), case.input("t", torch.float32)
    p, head, row = config["patch_size"], transformer.head, config["patch_row"]
    patches = patchify(x, (p, p))
    tokens, angles = transformer.tokens(x)
    time = transformer.time_embed(t)[:, None]
    case.check("mid", "temb", time)
    if "num_classes" in config:
        blocks, condition = config["dit_blocks"], case.input("y", torch.float32)
        case.check("mid", "yemb", transformer.class_embed(condition))
        case.check("mid", "tokens", tokens)
    else:
        blocks, condition = config["image_blocks"], case.input("text", torch.float32)
        case.check("mid", f"tokens{suffix}", tokens)
        text = transformer.text_norm(transformer.text_embed(condition))
        case.check("mid", "text_proj", text)
        text = text + transformer.text_positions
        for number, block in enumerate(transformer.text_blocks):
            text = block(text, torch.nn.functional.silu(time))
            case.check("mid", f"text{number}", text)
        attention_inputs(case, transformer, tokens, time, angles, text)
    for number in range(blocks):
        case.check("mid", f"block{number}", transformer.encode(x, t, condition, number + 1)[3])
    h, time, *_ = transformer.encode(x, t, condition)
    s = torch.nn.functional.silu(time + h).flatten(0, 1)
    case.check("mid", "s" if "num_classes" in config else f"s{suffix}", s)
    z = head.embed(patches.flatten(0, 1).transpose(-1, -2), head.constant((p, p)))
    case.check("mid", "pixel" if "num_classes" in config else f"pixel{suffix}", z[row])
    for r, block in enumerate(head.blocks):
        w1, w2 = (w[row] for w in block.weights(s))
        if f"mid.nerf{r}_raw" in case.tensors:
            case.check("mid", f"nerf{r}_raw", block.generator(s)[row])
        case.check("mid", f"nerf{r}_W1", w1)
        case.check("mid", f"nerf{r}_W2", w2)
        z = block(z, s)
        case.check("mid", f"nerf{r}", z[row])


def attention_inputs(case: Case, transformer, tokens, time, angles, text) -> None:
    """Queries, keys and values of the first image block: the image's, rotated, then the text's, not."""
    block, seen = transformer.blocks[0], {}
    shift, scale = block.adaln(torch.nn.functional.silu(time)).chunk(6, dim=-1)[:2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pixnerd.transformer.F.scaled_dot_product_attention", lambda q, k, v: seen.update(q=q, k=k, v=v) or q
        )
        block.attn(block.norm1(tokens) * (1 + scale) + shift, angles, text)
    for name, tensor in seen.items():
        case.check("mid", f"attn0_{name}", tensor)


@of_kind("tables")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_tables(file, precision):
    case, dtype = Case(file), PRECISIONS[precision]

    def angles(entry):
        return rotary_angles(entry["height"], entry["width"], entry["head_dim"], dtype=dtype)

    for entry in case.config["dct"]:
        case.check(precision, entry["key"], dct_code(entry["patch_size"], entry["patch_size"], dtype=dtype))
    for entry in case.config["rope"]:
        table = angles(entry)
        case.check(precision, entry["key"], torch.stack([table.cos(), table.sin()], dim=-1))
    for entry in case.config["rope_text_to_image"]:
        rows, columns = entry["height"], entry["width"]
        extent = PixNerdTextTransformer2DModel.rotary_extent(None, rows, columns)
        table = rotary_angles(rows, columns, entry["head_dim"], extent, dtype=dtype)
        case.check(precision, entry["key"], torch.stack([table.cos(), table.sin()], dim=-1))
    for entry in case.config["code_text_to_image"]:
        case.check(precision, entry["key"], cosine_code(entry["patch_h"], entry["patch_w"], dtype=dtype))
    entry = case.config["time_features"]
    case.check(precision, entry["key"], time_features(case.input("t", dtype), entry["dim"], entry["max_period"]))
    q = case.input("q", dtype).transpose(1, 2)  # (batch, heads, tokens, dim)
    entry = case.config["rotation"]
    case.check(precision, entry["key"], rotate(q, angles(entry)).transpose(1, 2))


@of_kind("samplers")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_samplers(file, precision):
    case, dtype = Case(file), PRECISIONS[precision]
    matrices, offsets = case.input("A", dtype), case.input("b", dtype)

    def field(k: int, x: torch.Tensor, t: float) -> torch.Tensor:
        rotated = torch.einsum("ij,bjhw->bihw", matrices[k], x)
        return torch.cos(torch.tensor(3 * t, dtype=dtype)) * rotated + offsets[k].view(1, -1, 1, 1)

    for run in case.config["runs"]:
        name, stochastic, order = run["name"], run.get("step", "").startswith("sde"), run.get("order", 1)
        scheduler = PixNerdScheduler(
            solver=run["step"] if stochastic else run["solver"],
            solver_order=order,
            shift=run["shift"],
            guidance_interval=run["interval"],
        )
        scheduler.set_timesteps(run["steps"])
        case.check(precision, f"{name}.times", torch.tensor(scheduler.grid, dtype=torch.float64))
        noises = iter(case.input("noise", dtype))
        x = case.input("x0", dtype)
        states, velocities, scales, coefficients = [x], [], [], []
        for i, t in enumerate(scheduler.timesteps):
            scale = run["guidance"] if scheduler.is_guided(t) else 1.0
            v0, v1 = (field(k, x, scheduler.grid[i]) for k in (0, 1))
            v = v0 + scale * (v1 - v0)
            with pytest.MonkeyPatch.context() as patch:  # the noise of the case in place of the generator's
                patch.setattr("pixnerd.scheduler.randn_tensor", lambda *args, noises=noises, **kwargs: next(noises))
                step = scheduler.step(v, t, x)
            x = step.prev_sample
            states.append(x)
            velocities.append(step.velocity)
            scales.append(scale)
            weights = adams_coefficients(scheduler.grid[: i + 2], min(i + 1, order))[::-1]
            coefficients.append([0.0] * (4 - len(weights)) + weights)
        # the official float32 coefficients of orders 3 and 4 are wrong by more than the states' rounding
        loose = 1e-3 if order >= 3 and precision == "out" else None
        case.check(precision, f"{name}.t_seen", torch.tensor(scheduler.grid[:-1], dtype=torch.float64))
        case.check(precision, f"{name}.x", torch.stack(states), loose)
        case.check(precision, f"{name}.v", torch.stack(velocities), loose)
        if f"out.{name}.coeffs" in case.tensors:
            case.check(precision, f"{name}.coeffs", torch.tensor(coefficients, dtype=torch.float64), loose)
        assert torch.allclose(case.tensors[f"out.{name}.scale"].double(), torch.tensor(scales).double())


@of_kind("training")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_training(file, precision):
    case, dtype = Case(file), PRECISIONS[precision]
    config = case.config
    x, eps, normals = case.input("x", dtype), case.input("eps", dtype), case.input("batch_normals", dtype)
    prediction = case.input("prediction", dtype)
    for shift in config["time_shifts"]:
        key = f"shift{shift:g}"
        case.check(precision, f"t_lognormal_{key}", lognormal_time(case.input("normals", dtype), shift))
        case.check(precision, f"t_uniform_{key}", shift_time(case.input("uniforms", dtype), shift))
        t = lognormal_time(normals, shift)
        case.check(precision, f"t_{key}", t)
        case.check(precision, f"x_t_{key}", interpolate(x, eps, t))
        for weight in config["weights"]:
            loss = (LOSS_WEIGHTS[weight](t) * velocity_loss(prediction, x, eps, t)).mean()
            case.check(precision, f"loss_{weight}_{key}", loss)
    first = lognormal_time(normals, config["time_shifts"][0])
    for weight in config["weights"]:
        if weight != "constant":
            case.check(precision, f"weight_{weight}", LOSS_WEIGHTS[weight](first))

    labels, null = case.input("labels", dtype), config["network"]["num_classes"]
    dropped = torch.where(case.input("drop_uniforms", dtype) < config["label_drop"], null, labels)
    assert torch.equal(dropped, case.tensors["out.labels_after_drop"])

    teacher, t = case.input("teacher", dtype), lognormal_time(normals, config["network_time_shift"])
    width = config["network"]["hidden_size"]
    transformer = network(config["network"], case.weights("weights.denoiser."), dtype)
    projector = Projector(width, config["teacher_dim"], config["projector_hidden"]).to(dtype)
    projector.load_state_dict(case.weights("weights.diffusion_trainer.proj.0."))
    weight, layer = config["feature_loss_weight"], config["align_block"]
    objective = Objective(transformer, projector, feature_layer=layer, repa_weight=weight)
    losses = objective(x, dropped, t, eps, teacher)
    case.check(precision, "repa.loss", losses["loss"])
    case.check(precision, "repa.fm_loss", losses["velocity"])
    case.check(precision, "repa.cos_loss", losses["repa"])
    losses["loss"].backward()
    grad = precision.replace("out", "grad")
    ours = ours_by_official_name(transformer, case.weights("weights.denoiser."))
    for key in [key for key in case.tensors if key.startswith(f"{grad}.")]:
        name = key.removeprefix(f"{grad}.")
        if name.startswith("denoiser."):
            case.check(grad, name, ours[name.removeprefix("denoiser.")][0].grad)
        elif name.startswith("diffusion_trainer.proj.0."):
            parameter = dict(projector.named_parameters())[name.removeprefix("diffusion_trainer.proj.0.")]
            case.check(grad, name, parameter.grad)

    # with a teacher of fewer tokens the official code cuts ours; we refuse, so cut them here
    tokens = transformer(interpolate(x, eps, t), t, dropped, feature_layer=layer).features
    short = repa_loss(projector(tokens[:, :-1]), teacher[:, :-1]).mean()
    case.check(precision, "repa_short.cos_loss", short)

    features_only = Objective(transformer, feature_layer=layer, dispersive_weight=weight)
    transformer.zero_grad()
    losses = features_only(x, labels, t, eps)
    case.check(precision, "disperse.loss", losses["loss"])
    case.check(precision, "disperse.feature_loss", losses["dispersive"])
    features = transformer(interpolate(x, eps, t), t, labels, feature_layer=layer).features
    same = dispersive_loss(features, config["dispersive_temperature"])
    case.check(precision, "disperse.feature_loss", same)
    losses["loss"].backward()
    case.check(grad, "disperse.denoiser.s_embedder.proj.weight", transformer.patch_embed.weight.grad)


@of_kind("ema")
def test_moving_average(file):
    case = Case(file)
    config = case.config
    for decay in config["decays"]:
        for every in config["every"]:
            model = torch.nn.ParameterList(case.tensors[f"in.w{i}_step0"].clone() for i in range(config["tensors"]))
            ema = EMA(model, decay, every=every)
            for step in range(1, config["steps"] + 1):
                for i, p in enumerate(model):
                    p.data.copy_(case.tensors[f"in.w{i}_step{step}"])
                ema.update(step)
                for i in range(config["tensors"]):
                    case.check("out", f"decay{decay:g}_every{every}.w{i}_step{step}", ema.shadow[str(i)])


@of_kind("pixels")
def test_pixels(file):
    case = Case(file)
    case.check("out", "byte_to_float", to_float(case.tensors["in.byte"]), 1e-7)
    assert torch.equal(to_bytes(case.tensors["in.value"]), case.tensors["out.value_to_byte"])
    for number, entry in enumerate(case.config["crops"]):
        cropped = center_crop(Image.fromarray(case.tensors[f"in.crop{number}"].numpy()), entry["size"])
        assert np.array_equal(np.asarray(cropped), case.tensors[f"out.crop{number}"].numpy())
    for number, entry in enumerate(case.config["teacher_inputs"]):
        for precision, dtype in PRECISIONS.items():
            ours = teacher_input(case.input(f"raw{number}", dtype), entry["patch_size"])
            case.check(precision, f"teacher_input{number}", ours)
