"""The card of a saved model."""

from huggingface_hub import ModelCard, ModelCardData

TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

{{ kind }} with {{ parameters }} parameters, trained on {{ dataset }} for {{ steps }} steps. {{ what }}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{{ name }}", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("{{ name }}")
inputs = tokenizer({{ prompt }}, return_tensors="pt", return_token_type_ids=False)
print(tokenizer.decode(model.generate(**inputs, max_new_tokens={{ new }}, do_sample=False)[0]))
```
"""

ENERGY = (
    "Its forward pass is {T} steps of one block on an energy of the tokens "
    "([NRGPT](https://arxiv.org/abs/2512.16762)): feed-forward energy {energy}, inference rate {eta}, {mask} mask. "
    "`model(**inputs, output_energies=True)` returns the energies of each token at each step."
)
GPT = "A baseline of [NRGPT](https://arxiv.org/abs/2512.16762): {T} {blocks}."


def model_card(model, name: str, dataset: str, steps: int, prompt: str) -> ModelCard:
    """A card with what a stranger needs: what it is, on what it was trained, how to use it.

    Args:
        name: Hub repository or folder, from which the card's snippet loads.
        prompt: one that the tokenizer knows.
    """
    config = model.config
    if config.block == "energy":
        kind = "NRGPT"
        what = ENERGY.format(T=config.num_hidden_layers, energy=config.energy, eta=config.eta, mask=config.mask)
    else:
        kind = f"A GPT of {'one repeated' if config.share_blocks else 'distinct'} {config.block} blocks"
        blocks = "applications of one block" if config.share_blocks else "blocks"
        what = GPT.format(T=config.num_hidden_layers, blocks=blocks)
    data = ModelCardData(
        license="other",
        license_name="as-the-training-data",
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["nrgpt", "energy-based"],
    )
    return ModelCard.from_template(
        data,
        template_str=TEMPLATE,
        name=name,
        kind=kind,
        what=what,
        parameters=f"{sum(p.numel() for p in model.parameters()):,}",
        dataset=dataset,
        steps=f"{steps:,}",
        prompt=repr(prompt),
        new=min(24, config.max_position_embeddings - 8),
    )
