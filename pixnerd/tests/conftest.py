from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from torch.utils._python_dispatch import TorchDispatchMode

from pixnerd import PixNerdTextTransformer2DModel, PixNerdTransformer2DModel

torch.set_num_threads(1)  # the work of a test is too small to share


SHAPE = dict(
    sample_size=16,
    patch_size=4,
    hidden_size=24,
    num_attention_heads=2,
    num_layers=2,
    head_layers=2,
    head_channels=8,
)
"""Of the small networks."""


def random_transformer(seed: int = 0, **options) -> PixNerdTransformer2DModel:
    """A small network in which nothing is left at zero or one."""
    return disturbed(PixNerdTransformer2DModel(**(SHAPE | dict(num_classes=5) | options)), seed)


def random_text_transformer(seed: int = 0, **options) -> PixNerdTextTransformer2DModel:
    """A small text-to-image network in which nothing is left at zero or one."""
    text = dict(text_layers=1, text_dim=16, text_length=5)
    return disturbed(PixNerdTextTransformer2DModel(**(SHAPE | text | options)), seed)


def disturbed(transformer, seed: int):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in transformer.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return transformer.eval()


SAVED_FILES = {
    "README.md",
    "model_index.json",
    "pixnerd_pipeline.py",
    "scheduler/pixnerd_scheduler.py",
    "scheduler/scheduler_config.json",
    "transformer/config.json",
    "transformer/diffusion_pytorch_model.safetensors",
    "transformer/pixnerd_transformer.py",
}
"""A saved pipeline with its card: all that is uploaded."""


def path_without_this_package(folder: Path) -> str:
    """For PYTHONPATH of a process in which `import pixnerd` fails."""
    refuse = folder / "refuse"
    refuse.mkdir(exist_ok=True)
    (refuse / "sitecustomize.py").write_text("import sys\nsys.modules['pixnerd'] = None\n")
    return str(refuse)


class NoFloat64(TorchDispatchMode):
    """Fails on any operation that makes a float64 tensor: some devices have none."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            assert not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.float64, f"{func} made float64"
        return out


@pytest.fixture
def transformer() -> PixNerdTransformer2DModel:
    return random_transformer()


def pytest_terminal_summary(terminalreporter) -> None:
    """Say how many cases of reference numbers were compared."""
    passed = {report.nodeid for report in terminalreporter.getreports("passed") if "test_parity.py" in report.nodeid}
    cases = {name.split("[")[1].rstrip("]").split("-")[-1] for name in passed if "[" in name}
    terminalreporter.write_line(f"reference numbers: {len(cases)} cases compared")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """Also where there is a GPU: some tests compare with another process to the last digit."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


WORDS = ["<pad>", "<unk>", "a", "b", "red", "green", "blue", "square", "circle", "of", "the", "picture"]


@pytest.fixture(scope="session")
def language_model(tmp_path_factory) -> str:
    """Folder of a tiny language model of transformers with random weights, as large ones are saved."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder = str(tmp_path_factory.mktemp("language_model"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<pad>").save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=64, pad_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.Qwen3Model(config)
    torch.nn.init.normal_(model.embed_tokens.weight)  # the padding's too, which starts at zero
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def captioned(tmp_path) -> Path:
    """Four hundred small images in three colours, each with a caption that names its colour."""
    file, labels = tmp_path / "captioned.npz", np.arange(400) % 3
    noise = np.random.default_rng(0).integers(0, 100, (400, 16, 16, 3))
    images = (noise + 150 * np.eye(3)[labels][:, None, None]).astype(np.uint8)
    colours = np.array(["red", "green", "blue"])
    captions = [f"a {colours[label]} {'square' if i % 2 else 'circle'}" for i, label in enumerate(labels)]
    np.savez(file, images=images, labels=labels, class_names=colours, captions=captions)
    return file


@pytest.fixture
def data(tmp_path) -> Path:
    """Forty small images in three classes."""
    file = tmp_path / "data.npz"
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    np.savez(file, images=images, labels=np.arange(40) % 3, class_names=["a", "b", "c"])
    return file
