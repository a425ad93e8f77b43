"""What needs a GPU: bfloat16 and torch.compile. Skipped without one."""

import numpy as np
import pytest
import torch

from pixnerd import PixNerdPipeline

from .runs import SMALL, call, losses

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.fixture
def on_the_cpu():
    """Not here."""


def test_training_in_bfloat16_and_compiled(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(40) % 3)
    common = SMALL | dict(dataset=str(tmp_path / "data.npz"), batch_size=8, steps=5, log_every=1, tracker="none")
    call(common | dict(output_dir=tmp_path / "plain", preview_every=5))
    call(common | dict(output_dir=tmp_path / "fast", mixed_precision="bf16", compile=True, matmul_precision="medium"))
    for a, b in zip(losses(tmp_path / "plain"), losses(tmp_path / "fast"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=0.02)
    pipeline = PixNerdPipeline.from_pretrained(tmp_path / "fast", torch_dtype=torch.bfloat16).to("cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    images = pipeline([0, 1], num_inference_steps=4, generator=generator, output_type="pt").images
    assert images.dtype == torch.float32 and torch.isfinite(images).all()
