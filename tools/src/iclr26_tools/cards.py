"""Model cards, on `huggingface_hub.ModelCard`."""

from collections.abc import Sequence
from pathlib import Path

import jinja2
from huggingface_hub import ModelCard, ModelCardData
from jinja2 import meta

from iclr26_tools import results

TEMPLATE = """---
{{ card_data }}
---

# {{ title }}

{{ description }}

## Use

```python
{{ snippet }}
```
{% if results %}
## Results

{{ results }}
{% endif %}
## Licence

Code and weights: {{ license }}. Training data: {{ data_license }}.
{% if citation %}
## Citation

```bibtex
{{ citation }}
```
{% endif %}"""


def model_card(
    template: str | Path | None = None,
    *,
    title: str,
    description: str,
    snippet: str,
    library: str,
    pipeline_tag: str | None,
    license: str = "apache-2.0",
    data_license: str,
    datasets: Sequence[str] = (),
    tags: Sequence[str] = (),
    results_file: str | Path | None = None,
    table: str | None = None,
    citation: str = "",
    **fields: str,
) -> ModelCard:
    """A card with metadata, a snippet, licences, and the measured table where there is one.

    Args:
        template: Jinja text, or a `Path` to it; None for `TEMPLATE`. It starts with the `{{ card_data }}` block and
            may use title, description, snippet, results, license, data_license, citation and `fields`.
        snippet: Python that loads and uses the model.
        library, pipeline_tag, license, datasets, tags: Hub metadata, such as "diffusers" and "text-to-image".
        data_license: licence of the training data, in words.
        results_file: a file of the results schema; `table` chooses one of its tables.

    Raises:
        ValueError: the template uses a name that is not given, or the metadata is not what the Hub takes.
    """
    text = TEMPLATE if template is None else template.read_text("utf-8") if isinstance(template, Path) else template
    fields |= {"title": title, "description": description, "snippet": snippet.strip(), "citation": citation.strip()}
    fields |= {"license": license, "data_license": data_license, "results": ""}
    if results_file is not None:
        fields["results"] = results.markdown(results.load(results_file), table)
    if unknown := meta.find_undeclared_variables(jinja2.Environment().parse(text)) - fields.keys() - {"card_data"}:
        raise ValueError(f"template: expected only names that are given ({sorted(fields)}), got {sorted(unknown)}")
    data = ModelCardData(
        library_name=library,
        pipeline_tag=pipeline_tag,
        license=license,
        datasets=list(datasets) or None,
        tags=list(tags) or None,
    )
    return ModelCard.from_template(data, template_str=text, **fields)
