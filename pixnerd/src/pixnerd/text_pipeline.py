"""From prompts to pictures."""

import torch
from diffusers import ImagePipelineOutput
from torch import Tensor

from .pipeline import PixelPipeline
from .text_encoder import encode_prompts, load_text_encoder


class PixNerdTextToImagePipeline(PixelPipeline):
    """Text-to-image generation in pixel space.

    Args:
        transformer: a `PixNerdTextTransformer2DModel`.
        scheduler: a `PixNerdScheduler`.
        tokenizer, text_encoder: of `transformers`; without them prompts come as features.
        text_encoder_name: where they came from when the network was trained, for `load_text_encoder`.
    """

    model_cpu_offload_seq = "text_encoder->transformer"
    _optional_components = ["tokenizer", "text_encoder"]
    transformer_class = "PixNerdTextTransformer2DModel"
    saved_options = ("text_encoder_name",)

    def __init__(
        self, transformer, scheduler, tokenizer=None, text_encoder=None, text_encoder_name: str | None = None
    ) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer, scheduler=scheduler, tokenizer=tokenizer, text_encoder=text_encoder
        )
        self.register_to_config(text_encoder_name=text_encoder_name)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        negative_prompt: str | list[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        encoder_size: int | tuple[int, int] | None = None,
        num_inference_steps: int = 25,
        guidance_scale: float = 4.0,
        guidance_interval: tuple[float, float] | None = None,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | list[torch.Generator] | None = None,
        latents: Tensor | None = None,
        prompt_embeds: Tensor | None = None,
        negative_prompt_embeds: Tensor | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end=None,
        callback_on_step_end_tensor_inputs: list[str] | None = None,
    ) -> ImagePipelineOutput | tuple:
        """Sample images for each prompt. Prompts are read once, not at each step.

        Args:
            prompt: what to show.
            negative_prompt: what guidance leads away from, one or one a prompt; the empty prompt if not given.
            height, width: of the images in pixels, multiples of the number of patches a side; by default those the
                model was trained on.
            encoder_size: side, or (height, width), at which the transformer sees the images; by default those it was
                trained on: its tokens are decoded to `height` x `width` (arbitrary-resolution decoding).
            num_inference_steps: steps of the solver (paper: 25 of Adams, order 2).
            guidance_scale: w in v_u + w (v_c − v_u); 1 is none (paper: 4).
            guidance_interval: times strictly between which guidance acts; by default the scheduler's.
            num_images_per_prompt: images of each prompt, one after the other.
            generator: one, or one an image: then an image does not depend on the batch it is sampled in.
            latents: the noise at t = 0, (images, channels, height, width), instead of drawing it.
            prompt_embeds, negative_prompt_embeds: features from `encode_prompt`, (prompts, text_length, text_dim),
                instead of prompts; with one negative row for all, or one a prompt.
            output_type, callback_on_step_end, callback_on_step_end_tensor_inputs: as in `PixNerdPipeline`.

        Raises:
            ValueError: no prompt, or a prompt without a text encoder; features of another text encoder; sizes that do
                not fit the patches, wrong interval or output type.
        """
        self._check_inputs(guidance_scale, guidance_interval, output_type, callback_on_step_end_tensor_inputs)
        if (prompt is None) == (prompt_embeds is None):
            raise ValueError("prompt: expected a prompt or prompt_embeds, one of the two")
        if negative_prompt is not None and negative_prompt_embeds is not None:
            raise ValueError("negative_prompt: expected a negative prompt or negative_prompt_embeds, not both")
        if num_images_per_prompt < 1:
            raise ValueError(f"num_images_per_prompt: expected at least 1, got {num_images_per_prompt}")
        embeds = self._features("prompt_embeds", prompt_embeds, prompt)
        if guidance_scale == 1:
            negative = embeds
        else:
            empty = "" if negative_prompt is None else negative_prompt
            negative = self._features("negative_prompt_embeds", negative_prompt_embeds, empty)
        if len(negative) not in (1, len(embeds)):
            which = "negative_prompt" if negative_prompt_embeds is None else "negative_prompt_embeds"
            raise ValueError(f"{which}: expected 1 or {len(embeds)}, one a prompt, got {len(negative)}")
        negative = negative.expand(len(embeds), -1, -1)
        if encoder_size is None:
            encoder_size = self.transformer.config.sample_size
        images = self.generate(
            embeds.repeat_interleave(num_images_per_prompt, dim=0),
            negative.repeat_interleave(num_images_per_prompt, dim=0),
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

    def encode_prompt(self, prompt: str | list[str]) -> Tensor:
        """Features of prompts, (prompts, text_length, text_dim), rounded to bfloat16.

        Raises:
            ValueError: there is no text encoder, or no prompt.
        """
        if self.text_encoder is None or self.tokenizer is None:
            name = self.config.text_encoder_name
            raise ValueError(
                "prompt: this pipeline has no text encoder; call load_text_encoder("
                + (f") to load {name}, with which it was trained" if name else "NAME)")
                + ", or give prompt_embeds and negative_prompt_embeds"
            )
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        if not prompts:
            raise ValueError("prompt: expected at least one prompt, got an empty list")
        different = list(dict.fromkeys(prompts))  # each is read once
        length, device = self.transformer.config.text_length, self._execution_device
        features = encode_prompts(self.tokenizer, self.text_encoder, different, length, device)
        return features[[different.index(prompt) for prompt in prompts]]

    def load_text_encoder(self, name: str | None = None, dtype: torch.dtype | None = None) -> None:
        """Load tokenizer and text encoder onto the pipeline's device.

        Args:
            name: as in `text_encoder.load_text_encoder`; by default the one that is there already, else the one that
                the network was trained with.
            dtype: by default the network's.

        Raises:
            ValueError: no name, or a model of another width.
            OSError: it cannot be loaded.
        """
        if name is None and self.text_encoder is not None:
            return
        name = name or self.config.text_encoder_name
        if name is None:
            raise ValueError(
                "text_encoder: expected a language model, this model does not say which it was trained with"
            )
        tokenizer, model = load_text_encoder(name, self.device, dtype or self.transformer.dtype)
        width = model.config.get_text_config().hidden_size
        if width != self.transformer.config.text_dim:
            raise ValueError(f"text_encoder: expected width {self.transformer.config.text_dim}, {name} has {width}")
        self.register_modules(tokenizer=tokenizer, text_encoder=model)

    def _features(self, argument: str, embeds: Tensor | None, prompt) -> Tensor:
        """Features given or computed, in the network's dtype, on its device."""
        embeds = self.encode_prompt(prompt) if embeds is None else embeds
        expected = (self.transformer.config.text_length, self.transformer.config.text_dim)
        if embeds.ndim != 3 or embeds.shape[1:] != expected:
            raise ValueError(f"{argument}: expected (prompts, {expected[0]}, {expected[1]}), got {tuple(embeds.shape)}")
        return embeds.to(self._execution_device, self.transformer.dtype)

    @classmethod
    def _load_optional(cls, index: dict, name: str, model: dict, hub: dict, given: dict) -> dict:
        """Tokenizer and text encoder, where they were saved with the rest."""
        found = {}
        if (index.get("text_encoder") or [None])[0] is not None:
            from transformers import AutoModel, AutoTokenizer

            if "tokenizer" not in given:
                found["tokenizer"] = AutoTokenizer.from_pretrained(name, subfolder="tokenizer", **hub)
            if "text_encoder" not in given:
                options = {"dtype": model["torch_dtype"]} if "torch_dtype" in model else {}
                # as load_text_encoder does, for the empty prompt
                options |= {"attn_implementation": "sdpa"} | hub
                found["text_encoder"] = AutoModel.from_pretrained(name, subfolder="text_encoder", **options)
        return found
