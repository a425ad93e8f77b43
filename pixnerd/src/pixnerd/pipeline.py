"""From class names to pictures; and what this has in common with the way from prompts to pictures."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from diffusers import DiffusionPipeline, ImagePipelineOutput
from diffusers.utils.torch_utils import randn_tensor
from PIL import Image
from torch import Tensor

from .errors import first_line
from .remote_code import write_code


def to_bytes(samples: Tensor) -> Tensor:
    """[-1, 1] → uint8: clip((x + 1) 127.5 + 0.5, 0, 255), truncated (official code)."""
    return ((samples.float() + 1) * 127.5 + 0.5).clamp(0, 255).to(torch.uint8)


class PixelPipeline(DiffusionPipeline):
    """What both pipelines share: the way from noise to pictures, and saving and loading. There is no autoencoder."""

    model_cpu_offload_seq = "transformer"
    _callback_tensor_inputs = ["latents"]
    transformer_class: str
    saved_options: tuple[str, ...]  # of __init__, beside the components

    def generate(
        self,
        condition: Tensor,
        negative: Tensor,
        height: int | None,
        width: int | None,
        encoder_size: int | tuple[int, int] | None,
        num_inference_steps: int,
        guidance_scale: float,
        guidance_interval: tuple[float, float] | None,
        generator: torch.Generator | list[torch.Generator] | None,
        latents: Tensor | None,
        output_type: str,
        callback_on_step_end: Callable | None,
    ) -> list[Image.Image] | Tensor | np.ndarray:
        """Integrate from noise to data.

        Args:
            condition: labels (batch,) or text features (batch, tokens, dim), on the device; `negative` like it.
        """
        transformer, scheduler = self.transformer, self.scheduler
        batch, channels, side = len(condition), transformer.config.in_channels, transformer.config.sample_size
        height, width = side if height is None else height, side if width is None else width
        if height < 1 or width < 1:
            raise ValueError(f"height, width: expected at least 1, got {height}, {width}")
        encoder_size = (encoder_size, encoder_size) if isinstance(encoder_size, int) else encoder_size
        device, dtype = self._execution_device, transformer.dtype
        shape = (batch, channels, height, width)
        if latents is None:
            latents = randn_tensor(shape, generator, device=device, dtype=torch.float32)
        elif latents.shape != shape:
            raise ValueError(f"latents: expected {shape}, got {tuple(latents.shape)}")
        x = latents.to(device, torch.float32)  # the state stays float32: only the network runs in its own dtype
        both = torch.cat([negative, condition])

        def predict(x: Tensor, t: Tensor, condition: Tensor) -> Tensor:
            time = t.to(device).expand(len(x))  # float32: the time features are not computed in bfloat16
            return transformer(x.to(dtype), time, condition, encoder_size=encoder_size).sample.float()

        scheduler.set_timesteps(num_inference_steps, device=device)
        for i, t in enumerate(self.progress_bar(scheduler.timesteps)):
            if guidance_scale != 1 and scheduler.is_guided(t, guidance_interval):
                without, with_condition = predict(torch.cat([x, x]), t, both).chunk(2)
                prediction = without + guidance_scale * (with_condition - without)
            else:  # outside the interval the second branch would be thrown away
                prediction = predict(x, t, condition)
            x = scheduler.step(prediction, t, x, generator=generator).prev_sample
            if callback_on_step_end is not None:
                x = (callback_on_step_end(self, i, t, {"latents": x}) or {}).get("latents", x)

        images = x
        if output_type == "pil":
            images = [Image.fromarray(array) for array in to_bytes(x).permute(0, 2, 3, 1).cpu().numpy()]
        elif output_type != "latent":
            images = to_bytes(x) / 255
            images = images if output_type == "pt" else images.permute(0, 2, 3, 1).cpu().numpy()
        self.maybe_free_model_hooks()
        return images

    def _check_inputs(self, guidance_scale, guidance_interval, output_type, tensor_inputs) -> None:
        if not guidance_scale >= 0:
            raise ValueError(f"guidance_scale: expected at least 0, got {guidance_scale}")
        if guidance_interval is not None and not guidance_interval[0] <= guidance_interval[1]:
            raise ValueError(f"guidance_interval: expected (low, high), got {tuple(guidance_interval)}")
        if output_type not in ("pil", "np", "pt", "latent"):
            raise ValueError(f'output_type: expected "pil", "np", "pt" or "latent", got {output_type!r}')
        if set(tensor_inputs or []) - set(self._callback_tensor_inputs):
            raise ValueError(f"callback_on_step_end_tensor_inputs: expected ['latents'], got {tensor_inputs}")

    def save_pretrained(self, save_directory, *, push_to_hub: bool = False, **kwargs) -> None:
        """As in diffusers, and with the code beside the weights: the folder loads where this package is not, by
        `DiffusionPipeline.from_pretrained(folder, trust_remote_code=True)`."""
        if push_to_hub:
            raise ValueError("push_to_hub: save first, then call push_to_hub on the pipeline or upload the folder")
        folder = Path(save_directory)
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

        Args:
            pretrained_model_name_or_path: the folder, or user/name.
            kwargs: components (`transformer`, `scheduler`, …), to be used instead of the saved ones; `torch_dtype`,
                `variant`, `use_safetensors` and `device_map` for the transformer; and for the Hub `revision`,
                `token`, `cache_dir`, `local_files_only`, `force_download`, `proxies`.

        Raises:
            ValueError: an argument that is none of these.
            OSError: nothing there that could be loaded.
        """
        package = importlib.import_module(__package__)
        if not hasattr(package, cls.transformer_class):  # this file itself was loaded from the Hub
            return super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        kwargs.pop("trust_remote_code", None)
        components = ("transformer", "scheduler", *cls._optional_components)
        given = {name: kwargs.pop(name) for name in components if name in kwargs}
        hub = ("revision", "token", "cache_dir", "local_files_only", "force_download", "proxies")
        hub = {name: kwargs.pop(name) for name in hub if name in kwargs}
        model = ("torch_dtype", "variant", "use_safetensors", "device_map")
        model = {name: kwargs.pop(name) for name in model if name in kwargs}
        if kwargs:
            raise ValueError(f"from_pretrained: unexpected arguments {', '.join(kwargs)}")
        name = str(pretrained_model_name_or_path)
        owner, _, repository = name.partition("/")
        if not Path(name).is_dir() and ("/" in repository or not repository or not owner or Path(owner).is_dir()):
            raise OSError(f"{name}: no such folder, and not a Hub repository, which is user/name")
        try:
            index = cls.load_config(name, **hub)
            kind = index.get("_class_name")
            kind = kind[-1] if isinstance(kind, list) else kind
            if kind not in {parent.__name__ for parent in cls.__mro__}:
                raise OSError(f"it is a {kind}")
            if "transformer" not in given:
                given["transformer"] = cls._load_transformer(package, name, model, hub)
            if "scheduler" not in given:
                given["scheduler"] = package.PixNerdScheduler.from_pretrained(name, subfolder="scheduler", **hub)
            given |= cls._load_optional(index, name, model, hub, given)
        except Exception as error:  # network, access, layout, safetensors: each its own kind
            raise OSError(f"{name}: no whole {cls.__name__} there ({first_line(error)})") from error
        return cls(**given, **{key: value for key, value in index.items() if key in cls.saved_options})

    @classmethod
    def _load_transformer(cls, package, name: str, model: dict, hub: dict):
        """The saved network, from safetensors only, with all of its weights."""
        model = {"use_safetensors": True} | model
        transformer, info = getattr(package, cls.transformer_class).from_pretrained(
            name, subfolder="transformer", output_loading_info=True, **model, **hub
        )
        if wrong := [*info["missing_keys"], *info["unexpected_keys"]]:
            raise OSError(f"weights missing or too many: {', '.join(wrong[:3])} and so on")
        return transformer

    @classmethod
    def _load_optional(cls, index: dict, name: str, model: dict, hub: dict, given: dict) -> dict:
        """Components that a folder may hold or not, beside those given (None for one that is not wanted)."""
        return {}


class PixNerdPipeline(PixelPipeline):
    """Class-conditional generation in pixel space.

    Args:
        transformer: a `PixNerdTransformer2DModel`.
        scheduler: a `PixNerdScheduler`.
        id2label: class names by id; a name may list synonyms, separated by commas.
    """

    transformer_class = "PixNerdTransformer2DModel"
    saved_options = ("id2label",)

    def __init__(self, transformer, scheduler, id2label: dict | None = None) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)
        id2label = {int(key): name for key, name in (id2label or {}).items()}
        self.register_to_config(id2label=id2label)
        synonyms = {word.strip(): key for key, name in id2label.items() for word in name.split(",")}
        self.labels = synonyms | {name: key for key, name in id2label.items()}

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
        latents: Tensor | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end=None,
        callback_on_step_end_tensor_inputs: list[str] | None = None,
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
            generator: one, or one an image: then an image does not depend on the batch it is sampled in.
            latents: the noise at t = 0, (batch, channels, height, width), instead of drawing it. There is no latent
                space here; the name is diffusers'.
            output_type: `"pil"`; `"np"`, (batch, height, width, channels) in [0, 1]; `"pt"`, (batch, channels, height,
                width) in [0, 1], both of the 256 values that a picture has; or `"latent"`, the state as it ends,
                about [-1, 1], float32.
            callback_on_step_end: called as f(pipeline, step, timestep, {"latents": state}); may return a new state in
                the same form.
            callback_on_step_end_tensor_inputs: `["latents"]`, the only one there is.

        Raises:
            ValueError: unknown class, sizes that do not fit the patches, wrong interval, solver or output type.
        """
        self._check_inputs(guidance_scale, guidance_interval, output_type, callback_on_step_end_tensor_inputs)
        labels = self._label_ids("class_labels", class_labels)
        negative = [self.transformer.config.num_classes]
        if negative_class_labels is not None:
            negative = self._label_ids("negative_class_labels", negative_class_labels)
        if len(negative) not in (1, len(labels)):
            raise ValueError(f"negative_class_labels: expected 1 or {len(labels)} labels, got {len(negative)}")
        negative = negative * len(labels) if len(negative) == 1 else negative
        images = self.generate(
            torch.tensor(labels, device=self._execution_device),
            torch.tensor(negative, device=self._execution_device),
            height,
            width,
            encoder_size,
            num_inference_steps,
            guidance_scale,
            guidance_interval,
            generator,
            latents,
            output_type,
            callback_on_step_end,
        )
        return ImagePipelineOutput(images=images) if return_dict else (images,)

    def _label_ids(self, argument: str, labels) -> list[int]:
        if isinstance(labels, Tensor):
            labels = labels.tolist()
        labels = labels if isinstance(labels, (list, tuple)) else [labels]
        if not labels:
            raise ValueError(f"{argument}: expected at least one class, got an empty list")
        count, ids = self.transformer.config.num_classes, []
        for label in labels:
            number = self.labels.get(label) if isinstance(label, str) else label
            if not hasattr(number, "__index__") or not 0 <= number <= count:
                names = ", ".join(list(self.labels)[:20]) + (", …" if len(self.labels) > 20 else "")
                expected = f"0..{count - 1} ({count} for no class)" + (f" or one of {names}" if names else "")
                raise ValueError(f"{argument}: expected {expected}, got {label!r}")
            ids.append(int(number))
        return ids
