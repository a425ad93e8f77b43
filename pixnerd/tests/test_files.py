import pytest

from pixnerd.files import expect_model, replacing


def test_a_file_is_replaced_at_the_end_of_the_block_and_not_after_an_error(tmp_path):
    file = tmp_path / "folder" / "a.txt"
    with replacing(file) as partial:
        partial.write_text("old")
        assert not file.exists()
    assert file.read_text() == "old"
    with pytest.raises(RuntimeError), replacing(file) as partial:
        partial.write_text("half")
        assert file.read_text() == "old"
        raise RuntimeError
    assert file.read_text() == "old"
    with replacing(file) as partial:
        partial.write_text("new")
    assert file.read_text() == "new" and not partial.exists()


def test_what_cannot_be_a_model_is_refused_without_asking_the_network(tmp_path):
    for there in (tmp_path, str(tmp_path), "user/name"):
        expect_model(there)
    for wrong in ("nothing", tmp_path / "nothing", "a/b/c"):
        with pytest.raises(OSError, match="model: expected a folder or a Hub id user/name, got"):
            expect_model(wrong)
