import numpy as np
import pytest
import torch
from PIL import Image

from iclr26_tools.images import NpzWriter, load_images, resize, write_npz


def pictures(seed=0, n=3, side=8):
    return torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def save(folder, images, names=None):
    folder.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / (names[i] if names else f"{i}.png"))
    return folder


def test_a_folder_is_read_sorted_and_recursively(tmp_path):
    images = pictures()
    save(tmp_path / "b c", images[2:], ["ü.png"])
    save(tmp_path / "a", images[:2])
    assert torch.equal(load_images(tmp_path), images)


def test_npz_round_trip_in_the_layout_of_the_adm_evaluator(tmp_path):
    images = pictures()
    write_npz(tmp_path / "x.npz", images)
    assert torch.equal(load_images(tmp_path / "x.npz"), images)
    array = np.load(tmp_path / "x.npz")["arr_0"]
    assert array.shape == (3, 8, 8, 3) and array[1, 2, 3, 0] == images[1, 0, 2, 3]


def test_an_npz_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    write_npz(tmp_path / "x.npz", pictures())
    monkeypatch.setattr("os.fsync", lambda number: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_npz(tmp_path / "x.npz", pictures(seed=1))
    assert torch.equal(load_images(tmp_path / "x.npz"), pictures()) and len(list(tmp_path.iterdir())) == 1


def test_an_npz_written_in_batches_and_interrupted_in_the_middle_of_an_image_is_that_written_at_once(tmp_path):
    images, file = pictures(n=7), tmp_path / "new/x.npz"
    NpzWriter(file, (7, 8, 8), {"seed": 0}).append(images[:4])
    partial = tmp_path / "new/x.npz.partial"
    partial.write_bytes(partial.read_bytes()[:-5])
    writer = NpzWriter(file, (7, 8, 8), {"seed": 0})
    assert writer.done == 3 and not file.exists()
    writer.append(images[3:5])
    with pytest.raises(ValueError, match="finish: expected 7 images, got 5"):
        writer.finish()
    with pytest.raises(ValueError, match=r"images: expected at most \(2, 3, 8, 8\), got \(3, 3, 8, 8\)"):
        writer.append(images[:3])
    writer.append(images[5:])
    writer.finish()
    assert torch.equal(load_images(file), images) and not partial.exists()
    write_npz(tmp_path / "once.npz", images)
    assert (tmp_path / "once.npz").read_bytes()[:200] == file.read_bytes()[:200]  # numpy's header, then pixels


def test_a_partial_npz_of_other_settings_is_refused(tmp_path):
    NpzWriter(tmp_path / "x.npz", (7, 8, 8), {"seed": 0}).append(pictures())
    for shape, settings in (((7, 8, 8), {"seed": 1}), ((8, 8, 8), {"seed": 0})):
        with pytest.raises(ValueError, match="x.npz.partial: expected a file of .*; delete or rename it"):
            NpzWriter(tmp_path / "x.npz", shape, settings)
    assert NpzWriter(tmp_path / "x.npz", (7, 8, 8), {"seed": 0}).done == 3


def test_transparent_pictures_are_laid_on_white(tmp_path):
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "a.png")
    Image.new("RGBA", (4, 4), (255, 0, 0, 255)).save(tmp_path / "b.png")
    clear, red = load_images(tmp_path)
    assert (clear == 255).all() and red[:, 0, 0].tolist() == [255, 0, 0]


def test_resizing_keeps_constant_images_and_means():
    assert (resize(torch.full((1, 3, 9, 5), 77, dtype=torch.uint8), 4) == 77).all()
    stripes = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    stripes[..., ::8] = 200  # without antialiasing the stripes would be missed
    small = resize(stripes, (16, 8))
    assert small.shape == (1, 3, 16, 8) and ((small[..., 1:-1].float() - 25).abs() <= 5).all()


def test_differing_sizes_need_a_size(tmp_path):
    save(save(tmp_path, pictures()), pictures(side=10, n=1), ["big.png"])
    with pytest.raises(ValueError, match=r"big.png is 10 x 10.*0.png is 8 x 8|0.png is 8 x 8.*big.png is 10 x 10"):
        load_images(tmp_path)
    assert load_images(tmp_path, 6).shape == (4, 3, 6, 6)


@pytest.mark.parametrize("content", [b"", b"not a picture", None])
def test_an_unreadable_picture_is_an_error_that_names_it(tmp_path, content):
    save(tmp_path, pictures())
    whole = (tmp_path / "0.png").read_bytes()
    (tmp_path / "bad one.png").write_bytes(whole[:100] if content is None else content)
    with pytest.raises(ValueError, match="bad one.png"):
        load_images(tmp_path)


def test_files_of_other_kinds_are_counted_aloud(tmp_path):
    save(tmp_path, pictures())
    (tmp_path / "labels.csv").write_text("a")
    with pytest.warns(UserWarning, match="1 files are not pictures, such as labels.csv"):
        assert len(load_images(tmp_path)) == 3


def test_bad_sources_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_images(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no.npz"):
        load_images(tmp_path / "no.npz")
    with pytest.raises(ValueError, match="no pictures"):
        load_images(tmp_path)
    np.savez(tmp_path / "other.npz", data=np.zeros(3))
    with pytest.raises(ValueError, match="other.npz.*arr_0.*data"):
        load_images(tmp_path / "other.npz")
    np.savez(tmp_path / "float.npz", np.zeros((2, 4, 4, 3)))
    with pytest.raises(ValueError, match="float.npz.*float64"):
        load_images(tmp_path / "float.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "float.npz").read_bytes()[:200])
    with pytest.raises(ValueError, match="cut.npz"):
        load_images(tmp_path / "cut.npz")
    with pytest.raises(ValueError, match="uint8"):
        load_images(torch.zeros(1, 3, 4, 4))
    with pytest.raises(ValueError, match=r"\(4, 4, 3\)"):
        load_images(torch.zeros(4, 4, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="size: expected"):
        load_images(pictures(), (-1, 4))
