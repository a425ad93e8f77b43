"""From class names to pictures."""

import importlib
import json
from pathlib import Path

import torch
from diffusers import DiffusionPipeline, ImagePipelineOutput
from diffusers.utils.torch_utils import randn_tensor
from huggingface_hub import snapshot_download
from torch import Tensor

from .remote_code import write_code


def to_bytes(samples: Tensor) -> Tensor:
    """[-1, 1] → uint8: clip((x + 1) 127.5 + 0.5, 0, 255), truncated (official code)."""
    return ((samples.float() + 1) * 127.5 + 0.5).clamp(0, 255).to(torch.uint8)


def best_device() -> str:
    """cuda, mps or cpu."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


class PixNerdPipeline(DiffusionPipeline):
    """Class-conditional generation in pixel space: no autoencoder anywhere.

    Args:
        transformer: a `PixNerdTransformer2DModel`.
        scheduler: a `PixNerdScheduler`.
        id2label: class names by id; a name may list synonyms, separated by commas.
    """

    model_cpu_offload_seq = "transformer"

    def __init__(self, transformer, scheduler, id2label: dict | None = None) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)
        id2label = {int(key): name for key, name in (id2label or {}).items()}
        self.register_to_config(id2label=id2label)
        self.labels = {name.strip(): key for key, names in id2label.items() for name in names.split(",")}

    @torch.no_grad()
    def __call__(
        self,
        class_labels: int | str | list[int | str],
        negative_class_labels: int | str | list[int | str] | None = None,
        height: int | None = None,
        width: int | None = None,
        encoder_size: int | tuple[int, int] | None = None,
        num_inference_steps: int = 50,
        guidance_scale: float = 3.5,
        guidance_interval: tuple[float, float] | None = None,
        generator: torch.Generator | list[torch.Generator] | None = None,
        noise: Tensor | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end=None,
    ) -> ImagePipelineOutput | tuple:
        """Sample one image for each class label.

        Args:
            class_labels: ids or names.
            negative_class_labels: what guidance leads away from; no class if not given.
            height, width: of the images in pixels; by default those the model was trained on.
            encoder_size: side, or (height, width), at which the transformer sees the images: the neural field then
                decodes the same tokens to `height` x `width` (arbitrary-resolution decoding). By default the images'
                own size, where larger images have more tokens.
            num_inference_steps: steps of the solver (paper: 100 Euler steps).
            guidance_scale: w in v_u + w (v_c − v_u); 1 is none (paper: 3.5).
            guidance_interval: times strictly between which guidance acts; by default the scheduler's.
            generator: one, or one an image. Images do not depend on the batch they are sampled in if each has its own.
            noise: the state at t = 0, (batch, channels, height, width), instead of drawing it.
            output_type: `"pil"`, `"np"` (batch, height, width, channels) in [0, 1], or `"pt"`, the samples as they
                come, about [-1, 1], float32.
            callback_on_step_end: called as f(pipeline, step, timestep, {"latents": state}), may return a new state
                in the same form.

        Raises:
            ValueError: unknown class, sizes that do not fit the patches, wrong interval, solver or output type.
        """
        transformer, scheduler = self.transformer, self.scheduler
        labels = self._label_ids(class_labels)
        batch, channels = len(labels), transformer.config.in_channels
        null = transformer.config.num_classes
        negative = [null] * batch if negative_class_labels is None else self._label_ids(negative_class_labels)
        negative = negative * batch if len(negative) == 1 else negative
        height, width = height or transformer.config.sample_size, width or transformer.config.sample_size
        if isinstance(encoder_size, int):
            encoder_size = (encoder_size, encoder_size)
        self._check_inputs(batch, negative, guidance_scale, guidance_interval, output_type)

        device, dtype = self._execution_device, transformer.dtype
        if noise is None:
            noise = randn_tensor((batch, channels, height, width), generator, device=device, dtype=torch.float32)
        elif noise.shape != (batch, channels, height, width):
            raise ValueError(f"noise: expected {(batch, channels, height, width)}, got {tuple(noise.shape)}")
        x = noise.to(device, torch.float32)  # the state stays float32: only the network runs in its own dtype
        labels = torch.tensor(labels, device=device)
        both = torch.cat([torch.tensor(negative, device=device), labels])

        def velocity(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
            time = t.to(device).expand(len(x))  # float32: the time embedding is not computed in bfloat16
            return transformer(x.to(dtype), time, labels, encoder_size=encoder_size).sample.float()

        scheduler.set_timesteps(num_inference_steps, device=device)
        for i, t in enumerate(self.progress_bar(scheduler.timesteps)):
            if guidance_scale != 1 and scheduler.is_guided(t, guidance_interval):
                v_negative, v_label = velocity(torch.cat([x, x]), t, both).chunk(2)
                v = v_negative + guidance_scale * (v_label - v_negative)
            else:  # outside the interval the second branch would be thrown away
                v = velocity(x, t, labels)
            x = scheduler.step(v, t, x, generator=generator).prev_sample
            if callback_on_step_end is not None:
                answer = callback_on_step_end(self, i, t, {"latents": x}) or {}
                x = answer.get("latents", x)

        images = x
        if output_type != "pt":
            images = to_bytes(x).permute(0, 2, 3, 1).cpu().numpy()
            images = self.numpy_to_pil(images / 255.0) if output_type == "pil" else images / 255.0
        self.maybe_free_model_hooks()
        return ImagePipelineOutput(images=images) if return_dict else (images,)

    def _label_ids(self, labels: int | str | list[int | str]) -> list[int]:
        labels = labels if isinstance(labels, (list, tuple)) else [labels]
        if not labels:
            raise ValueError("class_labels: expected at least one class, got an empty list")
        count = self.transformer.config.num_classes
        ids = []
        for label in labels:
            if isinstance(label, str) and label in self.labels:
                ids.append(self.labels[label])
            elif isinstance(label, int) and 0 <= label <= count:
                ids.append(label)
            else:
                names = ", ".join(list(self.labels)[:20]) + (", …" if len(self.labels) > 20 else "")
                raise ValueError(
                    f"class_labels: expected 0..{count - 1} ({count} for no class){' or one of ' if names else ''}"
                    f"{names}, got {label!r}"
                )
        return ids

    def _check_inputs(self, batch, negative, guidance_scale, guidance_interval, output_type) -> None:
        if len(negative) != batch:
            raise ValueError(f"negative_class_labels: expected one, or one of {batch} labels, got {len(negative)}")
        if guidance_scale < 0:
            raise ValueError(f"guidance_scale: expected at least 0, got {guidance_scale}")
        if guidance_interval is not None and not guidance_interval[0] <= guidance_interval[1]:
            raise ValueError(f"guidance_interval: expected (low, high), got {tuple(guidance_interval)}")
        if output_type not in ("pil", "np", "pt"):
            raise ValueError(f'output_type: expected "pil", "np" or "pt", got {output_type!r}')

    def save_pretrained(self, save_directory, push_to_hub: bool = False, **kwargs) -> None:
        """As in diffusers, and with the code beside the weights: the folder loads where this package is not, by
        `DiffusionPipeline.from_pretrained(folder, trust_remote_code=True)`."""
        folder = Path(save_directory)
        if push_to_hub:
            raise ValueError("push_to_hub: save first, then call push_to_hub on the pipeline or upload the folder")
        super().save_pretrained(folder, **kwargs)
        index_file = folder / "model_index.json"
        index = json.loads(index_file.read_text(encoding="utf-8"))
        index.pop("_name_or_path", None)  # where it was loaded from is nobody's business
        index["_class_name"] = [write_code(type(self), folder), type(self).__name__]
        for name in ("transformer", "scheduler"):
            component = type(getattr(self, name))
            index[name] = [write_code(component, folder / name), component.__name__]
        index_file.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **kwargs):
        """Load a folder or a Hub repository with the code of this package; code that lies there is not run.

        Takes `torch_dtype`, and for the Hub `revision`, `token`, `cache_dir`, `local_files_only`.
        """
        package = importlib.import_module(cls.__module__.rpartition(".")[0])
        if not hasattr(package, "PixNerdTransformer2DModel"):  # this file itself was loaded from the Hub
            return super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        folder = Path(pretrained_model_name_or_path)
        dtype = kwargs.pop("torch_dtype", None)
        if not folder.is_dir():
            hub = {k: kwargs.pop(k) for k in ("revision", "token", "cache_dir", "local_files_only") if k in kwargs}
            name = str(pretrained_model_name_or_path)
            try:
                folder = Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"], **hub))
            except Exception as error:  # no network, no access, no such name: each its own kind
                reason = str(error).strip().splitlines()[0]
                raise OSError(f"{name} is no folder here, and no model that the Hub gives us ({reason})") from error
        index_file = folder / "model_index.json"
        if not index_file.is_file():
            raise OSError(f"{folder}: expected a saved PixNerd pipeline, found no model_index.json there")
        index = json.loads(index_file.read_text(encoding="utf-8"))
        transformer = package.PixNerdTransformer2DModel.from_pretrained(
            folder, subfolder="transformer", torch_dtype=dtype
        )
        scheduler = package.PixNerdScheduler.from_pretrained(folder, subfolder="scheduler")
        return cls(transformer, scheduler, id2label=index.get("id2label"), **kwargs)
