import subprocess
import sys

import pytest
import torch

from pixnerd import PixNerdPipeline, PixNerdScheduler, PixNerdTextToImagePipeline

from .conftest import random_text_transformer
from .runs import PROJECT, environment, script


def test_without_gradio_the_app_says_what_to_install(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['gradio'] = None\n")
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    finished = subprocess.run([sys.executable, "app.py"], cwd=PROJECT, env=env, capture_output=True, text=True)
    assert finished.returncode == 1
    assert finished.stderr.strip() == "app.py: error: needs gradio; pip install 'iclr26-pixnerd[space]'"


def test_a_page_samples_what_the_pipeline_does(transformer):
    pytest.importorskip("gradio")
    app = script("app")
    for text in (random_text_transformer(sample_size=64), random_text_transformer(sample_size=48)):
        page = app.page(PixNerdTextToImagePipeline(text, PixNerdScheduler()))
        sizes = [b for b in page.blocks.values() if getattr(b, "label", "") in ("Height", "Width")]
        patches = text.config.sample_size // text.config.patch_size
        assert len(sizes) == 2 and all(b.minimum % patches == b.step % patches == 0 for b in sizes)
    pipeline = PixNerdPipeline(transformer, PixNerdScheduler(), id2label={0: "tench", 1: "goldfish"})
    app.page(pipeline)
    pictures = app.sampled(pipeline, 1, None, 2.0, 3.0, 2.0, 16.0, 24.0, 5.0)
    generators = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
    expected = pipeline(["goldfish"] * 2, width=24, num_inference_steps=3, guidance_scale=2.0, generator=generators)
    assert [p.tobytes() for p in pictures] == [p.tobytes() for p in expected.images]
