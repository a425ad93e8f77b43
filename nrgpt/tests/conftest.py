import pytest
import torch

from nrgpt import NRGPTConfig, NRGPTForCausalLM

torch.set_num_threads(1)  # the work of a test is too small to share

SHAPE = dict(
    vocab_size=11, hidden_size=12, num_hidden_layers=3, num_attention_heads=2, max_position_embeddings=10, mask="strict"
)
"""Of the small models."""


def random_model(seed: int = 0, dtype: torch.dtype = torch.float64, spread: float = 0.3, **options) -> NRGPTForCausalLM:
    """A small model in which nothing is left at zero or one."""
    torch.manual_seed(seed)
    model = NRGPTForCausalLM(NRGPTConfig(**(SHAPE | options))).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(spread * torch.randn(p.shape, generator=generator, dtype=dtype))
    return model.eval()


def random_ids(batch: int = 2, length: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randint(SHAPE["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
