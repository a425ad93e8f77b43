import numpy as np
import pytest
import torch
from PIL import Image

from pixnerd import openmoji
from pixnerd.data import LabelledImages, StepSampler, center_crop, load_images, places_of, read_image, to_float


def write_image(path, colour=(255, 0, 0), size=(20, 12)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


# OpenMoji


def test_openmoji_is_whole_and_split_by_base_emoji(tmp_path):
    train, test = (load_images("openmoji", 16, split, tmp_path) for split in ("train", "test"))
    assert len(train) + len(test) == 4495
    assert 0.05 < len(test) / 4495 < 0.15
    assert not set(train.groups) & set(test.groups)
    assert train.class_names == list(openmoji.KINDS)
    assert set(train.labels) == set(test.labels) == set(range(len(openmoji.KINDS)))
    item = train[0]
    assert item["image"].shape == (3, 16, 16) and item["image"].dtype == torch.uint8


def test_the_rendered_pictures_are_kept_and_read_again(tmp_path):
    first = load_images("openmoji", 8, "test", tmp_path)
    (cache,) = tmp_path.glob("*.npy")
    written = cache.stat().st_mtime_ns
    again = load_images("openmoji", 8, "test", tmp_path)
    assert cache.stat().st_mtime_ns == written
    assert torch.equal(first.all_images(), again.all_images())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("😀", "faces"),
        ("🐱", "animals"),
        ("👩🏽‍🚀", "people"),
        ("👍🏿", "hands and body"),
        ("🍕", "food"),
        ("🇩🇪", "flags"),
        ("🇩", "symbols"),
        ("🚀", "places and travel"),
        ("⚽", "activities"),
        ("🌻", "plants and weather"),
        ("👑", "objects"),
        ("➡", "symbols"),
        ("5️⃣", "symbols"),
        ("\ue000", "icons"),
    ],
)
def test_kinds(text, kind):
    assert openmoji.kind(tuple(map(ord, text))) == kind


def test_skin_tones_hair_and_gender_are_one_base():
    bases = {openmoji.base(tuple(map(ord, text))) for text in ("🏃", "🏃🏽", "🏃‍♀️", "🏃🏿‍♂️")}
    assert len(bases) == 1
    assert len({openmoji.base(tuple(map(ord, text))) for text in ("👩‍🚀", "👨🏻‍🚀", "🧑🏾‍🚀")}) == 1
    assert openmoji.base(tuple(map(ord, "👩‍🚀"))) != openmoji.base(tuple(map(ord, "👩‍🎨")))
    assert openmoji.base((0x1F3FB,)) == (0x1F3FB,)


def test_names_come_from_unicode():
    items = openmoji.files()
    assert sum(item.caption() is not None for item in items) == 3953
    by_text = {"".join(map(chr, item.codepoints)): item for item in items}
    assert by_text["😀"].caption() == "grinning face"
    assert by_text["\ue000"].caption() is None


# Folders, arrays, the Hub


def test_a_folder_with_class_folders(tmp_path):
    for split in ("train", "val"):
        for name, colour in (("Bäume und Blätter", (0, 255, 0)), ("autos", (255, 0, 0))):
            for i in range(2):
                write_image(tmp_path / split / name / f"bild {i}.png", colour)
    train, test = (load_images(str(tmp_path), 8, split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ["Bäume und Blätter", "autos"]
    assert train.labels.tolist() == [0, 0, 1, 1] and len(test) == 4
    assert torch.equal(train[0]["image"], torch.tensor([0, 255, 0]).view(3, 1, 1).expand(3, 8, 8).byte())


def test_class_ids_of_the_test_part_are_those_of_training(tmp_path):
    for name in ("a", "b", "c"):
        write_image(tmp_path / "train" / name / "1.png")
    write_image(tmp_path / "test" / "c" / "2.png")
    test = load_images(str(tmp_path), 8, "test")
    assert test.class_names == ["a", "b", "c"] and test.labels.tolist() == [2]
    write_image(tmp_path / "test" / "d" / "3.png")
    with pytest.raises(ValueError, match="has a class 'd' that the train folder lacks"):
        load_images(str(tmp_path), 8, "test")


def test_an_image_beside_class_folders_is_refused(tmp_path):
    write_image(tmp_path / "a" / "1.png")
    write_image(tmp_path / "stray.png")
    with pytest.raises(ValueError, match="has images beside its class folders"):
        load_images(str(tmp_path), 8)


def test_a_folder_without_classes_holds_out_a_tenth_by_name(tmp_path):
    for i in range(60):
        write_image(tmp_path / f"{i}.jpg")
    train, test = (load_images(str(tmp_path), 8, split) for split in ("train", "test"))
    assert len(train) + len(test) == 60 and 1 <= len(test) <= 15
    assert not set(train.images) & set(test.images)
    assert train.class_names == [tmp_path.name]


def test_captions_lie_beside_the_images(tmp_path):
    for i in range(60):
        write_image(tmp_path / f"{i}.jpg")
        (tmp_path / f"{i}.txt").write_text(f"número {i}\n", encoding="utf-8")
    for split in ("train", "test"):
        data = load_images(str(tmp_path), 8, split, captioned=True)
        assert [item["caption"] for item in data] == [f"número {path.stem}" for path in data.images]
        assert data.subset(np.array([1, 0])).captions[1] == data.captions[0]
        assert "caption" not in load_images(str(tmp_path), 8, split)[0]
    data.images[0].with_suffix(".txt").unlink()
    with pytest.raises(OSError, match=rf"expected the caption of {data.images[0].name} in"):
        data.captions[0]


def test_images_without_captions_are_refused_where_captions_are_needed(tmp_path):
    for i in range(20):
        write_image(tmp_path / "images" / f"{i}.png")
    with pytest.raises(ValueError, match="has no captions; expected NAME.txt beside each image"):
        load_images(str(tmp_path / "images"), 8, captioned=True)
    arrays = {"images": np.zeros((30, 8, 8, 3), np.uint8)}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match="has no captions; expected an array `captions`"):
        load_images(str(tmp_path / "a.npz"), 8, captioned=True)
    np.savez(tmp_path / "a.npz", **arrays, captions=["one"])
    with pytest.raises(ValueError, match="captions: expected 30, one an image, got 1"):
        load_images(str(tmp_path / "a.npz"), 8, captioned=True)
    np.savez(tmp_path / "a.npz", **arrays, captions=[str(i) for i in range(30)])
    parts = [load_images(str(tmp_path / "a.npz"), 8, split, captioned=True) for split in ("train", "test")]
    assert sorted([*parts[0].captions, *parts[1].captions]) == sorted(map(str, range(30)))


def test_emoji_without_a_name_are_left_out_of_captioned_data(tmp_path, monkeypatch):
    items = [e for e in openmoji.files() if openmoji.held_out([e])[0]]
    monkeypatch.setattr(openmoji, "files", lambda: items)
    monkeypatch.setattr(openmoji, "render", lambda path, size: np.zeros((size, size, 3), np.uint8))
    data = load_images("openmoji", 4, "test", tmp_path, captioned=True)
    assert list(data.captions) == [e.caption() for e in items if e.caption() is not None]
    assert 0 < len(data) < len(load_images("openmoji", 4, "test", tmp_path))


def test_images_are_upright_and_what_is_transparent_is_white(tmp_path):
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255  # the left half, which lies above once the image is turned by a right angle
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    image = read_image(tmp_path / "turned.png")
    assert image.size == (8, 16) and np.array_equal(np.asarray(image)[:, 0, 0], [255] * 8 + [0] * 8)
    clear = np.zeros((4, 4, 4), np.uint8)
    clear[0, 0] = 10, 20, 30, 255
    Image.fromarray(clear).save(tmp_path / "clear.png")
    seen = np.asarray(read_image(tmp_path / "clear.png"))
    assert seen[0, 0].tolist() == [10, 20, 30] and seen[1:].min() == 255


def test_a_hub_data_set_with_one_split_holds_out_a_tenth(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})
    pictures = [Image.new("RGB", (8, 8), (i, i, i)) for i in range(60)]
    part = datasets.Dataset.from_dict({"image": pictures, "text": [f"grey {i}" for i in range(60)]}, features=features)
    part.to_parquet(tmp_path / "train.parquet")
    both = [load_images(f"hf:{tmp_path}", 8, split, captioned=True) for split in ("train", "test")]
    assert 40 <= len(both[0]) < 60 and len(both[0]) + len(both[1]) == 60
    for data in both:
        assert all(item["caption"] == f"grey {item['image'][0, 0, 0]}" for item in data)


@pytest.mark.parametrize("content", [b"", b"this is no picture"])
def test_a_broken_image_is_named(tmp_path, content):
    write_image(tmp_path / "train" / "good.png")
    (tmp_path / "train" / "bad.png").write_bytes(content)
    write_image(tmp_path / "test" / "good.png")
    data = load_images(str(tmp_path), 8)
    with pytest.raises(OSError, match=r"bad\.png: not readable as an image"):
        data.all_images()


def test_arrays_of_bytes_and_of_floats(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(40) % 2
    np.savez(tmp_path / "bytes.npz", images=images, labels=labels, class_names=["a", "b"])
    np.savez(tmp_path / "floats.npz", images=images / 255.0)
    data = load_images(str(tmp_path / "bytes.npz"), 8)
    floats = load_images(str(tmp_path / "floats.npz"), 8)
    assert data.class_names == ["a", "b"] and floats.class_names == ["0"]
    assert torch.equal(data.all_images(), floats.all_images())
    assert len(data) + len(load_images(str(tmp_path / "bytes.npz"), 8, "test")) == 40


def test_a_data_set_in_the_form_of_the_hub(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    pictures = [Image.new("RGB", (12, 10), (i * 20, 0, 0)) for i in range(6)]
    for split in ("train", "test"):
        part = datasets.Dataset.from_dict({"img": pictures, "label": [0, 1] * 3}, features=features)
        (tmp_path / "data").mkdir(exist_ok=True)
        part.to_parquet(str(tmp_path / "data" / f"{split}-00000-of-00001.parquet"))
    data = load_images(f"hf:{tmp_path}", 8)
    assert data.class_names == ["cat", "dog"] and data.labels.tolist() == [0, 1] * 3
    assert (data[3]["image"][0] == 60).all()
    assert len(load_images(f"hf:{tmp_path}", 8, "test")) == 6


def nan_images():
    images = np.zeros((5, 8, 8, 3))
    images[3, 0, 0, 0] = np.nan
    return images


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": nan_images()}, r"images: expected uint8, or finite floats in \[0, 1\]; item 3"),
        ({"images": np.zeros((5, 6, 6, 3), np.uint8)}, r"images: expected \(items, 8, 8, 3\), got \(5, 6, 6, 3\)"),
        ({"pictures": np.zeros(3)}, "expected an array `images` in .*, found pictures"),
        (
            {"images": np.zeros((30, 8, 8, 3), np.uint8), "labels": np.full(30, 2), "class_names": ["a", "b"]},
            r"labels: expected class ids 0\.\.1, got 2",
        ),
        (
            {"images": np.zeros((30, 8, 8, 3), np.uint8), "labels": np.zeros(29)},
            "labels: expected 30, one an image, got 29",
        ),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_images(str(tmp_path / "data.npz"), 8)


@pytest.mark.parametrize("labels", [np.full(30, 0.7), np.zeros((30, 2), np.int64), np.array(["a"] * 30)])
def test_labels_that_are_no_class_ids_are_refused(tmp_path, labels):
    np.savez(tmp_path / "data.npz", images=np.zeros((30, 8, 8, 3), np.uint8), labels=labels)
    with pytest.raises(ValueError, match=r"labels: expected whole numbers \(items,\)"):
        load_images(tmp_path / "data.npz", 8)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no more"])
def test_a_broken_array_file_is_named(tmp_path, content):
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(OSError, match=r"data\.npz is not readable as an \.npz file"):
        load_images(str(tmp_path / "data.npz"), 8)


def test_sources_that_are_not_there(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="expected openmoji, a folder, an .npz file or hf:ID; 'no/such/folder' is none"):
        load_images("no/such/folder", 8)
    (tmp_path / "empty").mkdir()
    with pytest.raises(OSError, match="no image in"):
        load_images(str(tmp_path / "empty"), 8)
    write_image(tmp_path / "half" / "train" / "a.png")
    with pytest.raises(OSError, match="has a train folder, but none of test, val, validation"):
        load_images(str(tmp_path / "half"), 8, "test")
    with pytest.raises(ValueError, match='split: expected "train" or "test"'):
        load_images("openmoji", 8, "all")
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OSError, match="cannot load hf:nobody/nothing"):
        load_images("hf:nobody/nothing", 8)


def test_a_subset_keeps_labels_and_groups(tmp_path):
    data = toy([0, 1, 1, 2], groups=[5, 6, 6, 7])
    some = data.subset(np.array([3, 1]))
    assert some.labels.tolist() == [2, 1] and some.groups.tolist() == [7, 6] and len(some) == 2
    assert torch.equal(some[0]["image"], data[3]["image"])


def test_crops_halve_by_boxes_and_keep_the_centre():
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    halved = np.asarray(Image.fromarray(pixels).resize((16, 16), Image.Resampling.BOX))
    assert np.array_equal(np.asarray(center_crop(Image.fromarray(pixels), 16)), halved)
    wide = pixels[:16, :29]
    assert np.array_equal(np.asarray(center_crop(Image.fromarray(wide), 16)), wide[:, 6:22])


def test_another_seed_gives_another_order():
    for balanced in (False, True):
        orders = [next(iter(StepSampler(toy([0] * 50), 20, [range(20)], seed, balanced, 0))) for seed in (0, 1)]
        assert orders[0] != orders[1]


def test_bytes_become_floats_between_minus_one_and_one():
    assert to_float(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1, 1]


# Order


def toy(labels, groups=None) -> LabelledImages:
    images = np.zeros((len(labels), 2, 2, 3), np.uint8)
    return LabelledImages(images, labels, [str(i) for i in range(max(labels) + 1)], 2, groups)


def stream(data, batch_size, processes, accumulation, balanced, start, steps):
    """Indices by step and place, gathered from all processes."""
    gathered = {}
    for rank in range(processes):
        slices = places_of(batch_size, processes, rank, accumulation)
        sampler = iter(StepSampler(data, batch_size, slices, 3, balanced, start))
        for step in range(start, start + steps):
            for places in slices:
                for place, index in zip(places, next(sampler), strict=True):
                    gathered[step, place] = index
    return gathered


@pytest.mark.parametrize("balanced", [False, True])
def test_the_order_depends_neither_on_processes_nor_on_accumulation_nor_on_a_restart(balanced):
    data = toy([0, 1, 1, 2, 2, 2, 2, 0, 1, 2])
    whole = stream(data, 4, 1, 1, balanced, 0, 8)
    assert stream(data, 4, 2, 1, balanced, 0, 8) == whole
    assert stream(data, 4, 2, 2, balanced, 0, 8) == whole
    late = stream(data, 4, 1, 2, balanced, 5, 3)
    assert late == {key: index for key, index in whole.items() if key[0] >= 5}


def test_an_epoch_shows_every_item_once():
    seen = list(stream(toy([0] * 12), 4, 1, 1, False, 0, 6).values())
    assert sorted(seen[:12]) == sorted(seen[12:]) == list(range(12))
    assert seen[:12] != seen[12:]


def test_balanced_order_gives_classes_and_then_groups_equal_shares():
    labels, groups = [0] * 9 + [1], [0] * 8 + [1] + [2]  # eight variants of one thing, one of another; a rare class
    seen = list(stream(toy(labels, groups), 1, 1, 1, True, 0, 4000).values())
    assert np.mean(np.array(seen) == 9) == pytest.approx(0.5, abs=0.03)
    assert np.mean(np.array(seen) == 8) == pytest.approx(0.25, abs=0.03)


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(
        ValueError, match="batch_size: expected a multiple of processes x gradient_accumulation = 2 x 3, got 8"
    ):
        places_of(8, 2, 0, 3)
