from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from iclr26_tools import results
from iclr26_tools.cards import model_card

FIELDS = {
    "title": "Net",
    "description": "It adds one.",
    "snippet": "x = 1 + 1",
    "library": "diffusers",
    "pipeline_tag": "unconditional-image-generation",
    "data_license": "CC BY-SA 4.0",
}


def test_a_card_keeps_metadata_snippet_and_licences(tmp_path):
    model_card(**FIELDS, datasets=["a/b"], tags=["iclr26"]).save(tmp_path / "README.md")
    card = ModelCard.load(tmp_path / "README.md")
    data = card.data.to_dict()
    assert data == {"library_name": "diffusers", "pipeline_tag": "unconditional-image-generation", "datasets": ["a/b"],
                    "license": "apache-2.0", "tags": ["iclr26"]}  # fmt: skip
    assert "```python\nx = 1 + 1\n```" in card.text and "CC BY-SA 4.0" in card.text and "## Results" not in card.text


def test_a_card_shows_the_results_table(tmp_path):
    path = tmp_path / "results/r.json"
    (tmp_path / "m.py").write_text("")
    results.save(path, title="t", claim=None, metric="m", arms={}, budget="core", seeds=[0], config={}, verdict=None,
                 tables={"main": results.table("Scores.", ["a"], [[0.5]])}, code_paths=["m.py"],
                 environment=results.environment([]))  # fmt: skip
    text = model_card(**FIELDS, results_file=path).text
    assert "## Results" in text and "| 0.5 |" in text


def test_a_template_of_the_project_may_use_its_own_fields(tmp_path):
    (tmp_path / "card.md").write_text("---\n{{ card_data }}\n---\n{{ title }} at {{ side }} px")
    assert "Net at 32 px" in model_card(Path(tmp_path / "card.md"), **FIELDS, side="32").text
    with pytest.raises(ValueError, match=r"template: .*got \['side'\]"):
        model_card(Path(tmp_path / "card.md"), **FIELDS)
