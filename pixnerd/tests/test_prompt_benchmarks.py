import json

import numpy as np
import pytest
import torch
from PIL import Image

from pixnerd import prompt_benchmarks
from pixnerd.prompt_benchmarks import read_dpg, read_geneval, write_dpg, write_geneval

SETTINGS = {"model": "outputs/one", "interval": (0, 1)}
PROMPTS = ["a photo of a bench", "a photo of two clocks", "un café\u2028rouge"]


class Generator:
    """Images of one colour, (length of the prompt, 10 · seed, 0), but for the top left pixel; keeps what was asked."""

    def __init__(self, fails_at: int | None = None):
        self.asked, self.fails_at = [], fails_at

    def __call__(self, prompts, seeds):
        if len(self.asked) == self.fails_at:
            raise KeyboardInterrupt
        self.asked.append((prompts, seeds))
        images = torch.zeros(len(prompts), 3, 6, 8, dtype=torch.uint8)
        for image, prompt, seed in zip(images, prompts, seeds, strict=True):
            image[0], image[1] = len(prompt), 10 * seed
            image[:, 0, 0] = 255
        return images


@pytest.fixture
def metadata(tmp_path):
    """A metadata file as GenEval has it; one line has a separator that is not an end of a line."""
    file = tmp_path / "evaluation_metadata.jsonl"
    lines = [json.dumps({"tag": "colors", "prompt": p, "include": []}, ensure_ascii=False) for p in PROMPTS]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def prompts(tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    for name, prompt in zip("cab", PROMPTS, strict=True):
        (folder / f"{name}.txt").write_text(prompt + "\n", encoding="utf-8")
    (folder / ".hidden.txt").write_text("")
    return folder


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("[!.]*") if path.is_file())


def test_geneval_has_a_folder_a_prompt_with_its_line_and_four_images_of_the_seeds_0_to_3(metadata, tmp_path):
    generate, out = Generator(), tmp_path / "out"
    assert write_geneval(metadata, out, generate, SETTINGS, progress=False) == 3
    assert generate.asked == [([prompt] * 4, [0, 1, 2, 3]) for prompt in PROMPTS]
    of_one = ["metadata.jsonl", *(f"samples/000{i}.png" for i in range(4))]
    assert files(out) == [f"0000{number}/{name}" for number in range(3) for name in of_one]
    for number, prompt in enumerate(PROMPTS):
        with open(out / f"0000{number}" / "metadata.jsonl", encoding="utf-8") as file:  # as the scorer reads it
            assert json.load(file) == {"tag": "colors", "prompt": prompt, "include": []}
        for seed in range(4):
            pixels = np.array(Image.open(out / f"0000{number}" / "samples" / f"000{seed}.png"))
            assert pixels.shape == (6, 8, 3) and pixels[3, 3].tolist() == [len(prompt), 10 * seed, 0]


def test_geneval_goes_on_with_what_is_missing_or_of_another_prompt(metadata, tmp_path):
    out, generate = tmp_path / "out", Generator(fails_at=2)
    with pytest.raises(KeyboardInterrupt):
        write_geneval(metadata, out, generate, SETTINGS, progress=False)
    (out / "00000" / "samples" / "0002.png").unlink()
    generate = Generator()
    assert write_geneval(metadata, out, generate, SETTINGS, progress=False) == 2
    assert [prompts[0] for prompts, _ in generate.asked] == [PROMPTS[0], PROMPTS[2]]
    rephrased = metadata.read_text(encoding="utf-8").replace("two clocks", "2 clocks")
    metadata.write_text(rephrased, encoding="utf-8")
    generate = Generator(fails_at=0)
    with pytest.raises(KeyboardInterrupt):  # the old images are not taken for those of the new prompt later on
        write_geneval(metadata, out, generate, SETTINGS, progress=False)
    assert write_geneval(metadata, out, generate := Generator(), SETTINGS, progress=False) == 1
    assert generate.asked[0][0][0] == "a photo of 2 clocks"
    assert write_geneval(metadata, out, Generator(), SETTINGS, progress=False) == 0


def test_geneval_takes_no_images_of_a_prompt_that_was_there_in_between(metadata, tmp_path, monkeypatch):
    out, lines, save = tmp_path / "out", metadata.read_text(encoding="utf-8"), prompt_benchmarks._save
    write_geneval(metadata, out, Generator(), SETTINGS, progress=False)
    metadata.write_text(lines.replace("two clocks", "2 clocks"), encoding="utf-8")

    def breaks(picture, path):
        save(picture, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(prompt_benchmarks, "_save", breaks)
    with pytest.raises(KeyboardInterrupt):
        write_geneval(metadata, out, Generator(), SETTINGS, progress=False)
    monkeypatch.setattr(prompt_benchmarks, "_save", save)
    metadata.write_text(lines, encoding="utf-8")
    assert write_geneval(metadata, out, Generator(), SETTINGS, progress=False) == 1


def test_dpg_has_one_picture_a_prompt_whose_quarters_are_the_images(prompts, tmp_path):
    generate, out = Generator(), tmp_path / "out"
    assert write_dpg(prompts, out, generate, SETTINGS, progress=False) == 3
    assert files(out) == ["a.png", "b.png", "c.png"]
    assert [asked[0][0] for asked in generate.asked] == [PROMPTS[1], PROMPTS[2], PROMPTS[0]]  # by file name
    picture = Image.open(out / "c.png")
    assert picture.size == (16, 12)
    for seed, corner in enumerate([(0, 0), (8, 0), (0, 6), (8, 6)]):  # the order in which the scorer cuts
        quarter = np.array(picture.crop((*corner, corner[0] + 8, corner[1] + 6)))
        assert quarter[3, 3].tolist() == [len(PROMPTS[0]), 10 * seed, 0] and quarter[0, 0].tolist() == [255] * 3


def test_dpg_makes_only_what_is_missing(prompts, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        write_dpg(prompts, out, Generator(fails_at=2), SETTINGS, progress=False)
    assert files(out) == ["a.png", "b.png"]
    assert write_dpg(prompts, out, Generator(), SETTINGS, progress=False) == 1
    assert write_dpg(prompts, out, Generator(), SETTINGS, progress=False) == 0


@pytest.mark.parametrize(
    "content, message",
    [
        (
            '{"prompt": "a"}\n{"prompt": "b"\n',
            r'x.jsonl, line 2: expected a JSON object with "prompt", got .{"prompt"',
        ),
        ('{"prompt": "a"}\n\n{"prompt": "b"}\n', "line 2: expected a JSON object"),
        ('["prompt"]\n', "line 1: expected a JSON object"),
        ('{"text": "a"}\n', "line 1: expected a JSON object"),
        ('{"prompt": " "}\n', "line 1: expected a prompt, got ' '"),
        ('{"prompt": 3}\n', "line 1: expected a prompt, got 3"),
        ("", "line 1: expected a JSON object"),
        ("caf\u00e9".encode("latin-1"), "x.jsonl: expected text in UTF-8"),
    ],
)
def test_a_broken_metadata_file_is_named_with_its_line(content, message, tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        read_geneval(file)


def test_missing_and_empty_prompts_are_named(prompts, tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        read_geneval(tmp_path / "nowhere")
    with pytest.raises(OSError, match="nowhere: expected a folder of prompts"):
        read_dpg(tmp_path / "nowhere")
    (prompts / "b.txt").write_text(" \n")
    with pytest.raises(ValueError, match=r"b\.txt: expected a prompt, got an empty file"):
        read_dpg(prompts)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: expected prompts, one .txt file each"):
        read_dpg(tmp_path / "empty")


def test_images_of_the_wrong_kind_are_refused(prompts, tmp_path):
    for images in (torch.zeros(4, 3, 8, 8), torch.zeros(3, 3, 8, 8, dtype=torch.uint8)):
        with pytest.raises(ValueError, match=r"generate: expected uint8 \(4, 3, height, width\)"):
            write_dpg(prompts, tmp_path / "out", lambda prompts, seeds, images=images: images, SETTINGS, progress=False)
    assert not list((tmp_path / "out").glob("*.png"))


def test_images_of_another_model_or_prompt_are_not_mixed_in(metadata, prompts, tmp_path):
    for write, source, out in ((write_geneval, metadata, "geneval"), (write_dpg, prompts, "dpg")):
        write(source, tmp_path / out, Generator(), SETTINGS, progress=False)
        with pytest.raises(ValueError, match="output: .* holds images made with another guidance, model"):
            write(source, tmp_path / out, Generator(), SETTINGS | {"model": "two", "guidance": 2}, progress=False)
    (prompts / "b.txt").write_text("another prompt")
    with pytest.raises(ValueError, match="another prompts; take an empty folder"):
        write_dpg(prompts, tmp_path / "dpg", Generator(), SETTINGS, progress=False)
