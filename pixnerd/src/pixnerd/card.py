"""The card of a saved model."""

from huggingface_hub import ModelCard, ModelCardData

from .openmoji import ATTRIBUTION

TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

A {{ kind }} [PixNerd](https://arxiv.org/abs/2507.23268): a diffusion transformer on patches of
{{ patch }} x {{ patch }} pixels with {{ head }}, without an autoencoder. {{ parameters }} parameters, trained on
{{ dataset }} at {{ size }} x {{ size }} pixels for {{ steps }} steps; these are the averaged weights.

```python
from diffusers import DiffusionPipeline

pipeline = DiffusionPipeline.from_pretrained("{{ name }}", trust_remote_code=True)
{% if text_encoder %}pipeline.load_text_encoder()  # {{ text_encoder }}
{% endif %}images = pipeline({{ examples }}, num_inference_steps=25).images
```
{% if class_names %}
Classes: {{ class_names }}.
{% endif %}{{ attribution }}
"""


def model_card(pipeline, name: str, dataset: str, steps: int) -> ModelCard:
    """A card with what a stranger needs: what it is, on what it was trained, under which terms, how to sample.

    Args:
        name: Hub repository or folder, from which the card's snippet loads.
    """
    config = pipeline.transformer.config
    openmoji = dataset == "openmoji"
    kind, names = "text-to-image", []
    if "num_classes" in config:
        kind = "class-conditional"
        names = list(pipeline.config.id2label.values()) or [str(n) for n in range(config.num_classes)]
    data = ModelCardData(
        license="cc-by-sa-4.0" if openmoji else "other",
        license_name=None if openmoji else "as-the-training-data",
        library_name="diffusers",
        pipeline_tag="text-to-image" if kind == "text-to-image" else "unconditional-image-generation",
        tags=["pixnerd", "pixel-space", kind],
    )
    return ModelCard.from_template(
        data,
        template_str=TEMPLATE,
        name=name,
        kind=kind,
        patch=config.patch_size,
        head="a neural field head" if config.get("head_type", "neural_field") == "neural_field" else "a linear head",
        parameters=f"{sum(p.numel() for p in pipeline.transformer.parameters()):,}",
        dataset=dataset,
        size=config.sample_size,
        steps=f"{steps:,}",
        text_encoder=pipeline.config.get("text_encoder_name"),
        examples=names[:4] or ["red apple", "grinning face"],
        class_names=", ".join(names[:40]) + (", …" if len(names) > 40 else ""),
        attribution=f"\n{ATTRIBUTION}.\n" if openmoji else "",
    )
