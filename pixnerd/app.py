"""A page to sample from a model, for a browser or a Hugging Face Space: `python app.py --model outputs/demo`."""

import os
from dataclasses import dataclass
from typing import Literal

import torch
from PIL import Image

from pixnerd import PixNerdTextToImagePipeline
from pixnerd.cli import run
from pixnerd.files import expect_model
from pixnerd.pipeline import PixelPipeline
from pixnerd.sampling import choose_device, load_pipeline

try:
    import gradio
except ImportError as error:
    raise SystemExit("app.py: error: needs gradio; pip install 'iclr26-pixnerd[space]'") from error


@dataclass
class AppConfig:
    """Serve a page that samples from a model."""

    model: str = os.environ.get("PIXNERD_MODEL", "outputs/demo")
    """Folder of a saved pipeline, or its Hub id (a Space, which passes no options, sets PIXNERD_MODEL)."""
    text_encoder: str | None = None
    """Of a text-to-image model, as in train.py (default: what it was trained with)."""
    device: str | None = None
    """cuda, mps or cpu (default: the best there is)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the network and of a text encoder; the state is float32 in any case."""
    host: str | None = None
    """Address to serve on; 0.0.0.0 for other machines too (default: this machine, or what a Space says)."""
    port: int | None = None
    """Port to serve on (default: the first free one from 7860)."""


def main(config: AppConfig) -> None:
    expect_model(config.model)
    pipeline = load_pipeline(config.model, torch_dtype=getattr(torch, config.dtype))
    pipeline.to(choose_device(config.device))
    if isinstance(pipeline, PixNerdTextToImagePipeline):
        pipeline.load_text_encoder(config.text_encoder)
    page(pipeline).launch(server_name=config.host, server_port=config.port)


def page(pipeline: PixelPipeline) -> gradio.Blocks:
    """What to show, how to sample it, and a gallery."""
    text = isinstance(pipeline, PixNerdTextToImagePipeline)
    side, patch = pipeline.transformer.config.sample_size, pipeline.transformer.config.patch_size
    names = {} if text else dict(pipeline.config.id2label)
    with gradio.Blocks(title="PixNerd") as blocks:
        gradio.Markdown("# PixNerd\nPixel neural field diffusion: no autoencoder, each patch is a small neural field.")
        with gradio.Row():
            with gradio.Column():
                if text:
                    what = gradio.Textbox(label="Prompt")
                    negative = gradio.Textbox(label="Negative prompt")
                else:
                    classes = [(names.get(i, str(i)), i) for i in range(pipeline.transformer.config.num_classes)]
                    what = gradio.Dropdown(classes, value=0, label="Class")
                    negative = gradio.Dropdown([("none", None), *classes], value=None, label="Negative class")
                guidance = gradio.Slider(1, 8, value=4.0 if text else 2.0, step=0.1, label="Guidance")
                steps = gradio.Slider(1, 100, value=25, step=1, label="Steps")
                count = gradio.Slider(1, 16, value=4, step=1, label="Pictures")
                # text to image decodes as many patches at any size; else a larger picture has more of them
                step = side // patch if text else patch
                height, width = (
                    gradio.Slider(step, 4 * side, value=side, step=step, label=name) for name in ("Height", "Width")
                )
                seed = gradio.Number(0, precision=0, minimum=0, label="Seed of the first picture")
                button = gradio.Button("Sample", variant="primary")
            gallery = gradio.Gallery(label="Pictures", columns=4, format="png")
        inputs = [what, negative, guidance, steps, count, height, width, seed]

        def sample(*values, progress=gradio.Progress()) -> list[Image.Image]:  # noqa: B008
            try:
                return sampled(pipeline, *values, progress=progress)
            except (ValueError, TypeError) as error:  # an emptied field is None
                raise gradio.Error(str(error)) from error

        button.click(sample, inputs, gallery)
    return blocks


def sampled(
    pipeline: PixelPipeline, what, negative, guidance, steps, count, height, width, seed, progress=None
) -> list[Image.Image]:
    """Pictures of one class or prompt, number i from `seed` + i."""
    text = isinstance(pipeline, PixNerdTextToImagePipeline)
    if text and not what.strip():
        raise ValueError("prompt: expected some words, got none")
    name = "negative_prompt" if text else "negative_class_labels"
    options = {} if negative in (None, "") else {name: negative}

    def tell(pipeline, step, timestep, tensors) -> dict:
        if progress is not None:
            progress((step + 1, int(steps)), unit="steps")
        return {}

    pipeline.set_progress_bar_config(disable=True)
    return pipeline(
        [what] * int(count),
        height=int(height),
        width=int(width),
        num_inference_steps=int(steps),
        guidance_scale=guidance,
        generator=[torch.Generator(pipeline.device).manual_seed(int(seed) + i) for i in range(int(count))],
        callback_on_step_end=tell,
        **options,
    ).images


if __name__ == "__main__":
    run(main, AppConfig)
