import pytest

from pixnerd.files import replacing


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
