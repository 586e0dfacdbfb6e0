"""A path that is meant from one directory, called from another."""

from pathlib import Path

import pytest

from noisescope.planning.places import as_called_from


def test_the_same_file_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    file = tmp_path / "a" / "rows.jsonl"
    file.write_text("{}")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "a" / "deep")
    for here in (tmp_path / "a", tmp_path / "a" / "deep", tmp_path / "b", link):
        monkeypatch.chdir(here)
        name = as_called_from(".", "rows.jsonl", there=tmp_path / "a")
        assert Path(name).samefile(file)
        assert not Path(name).is_absolute()
        assert as_called_from(".", "rows.jsonl:question", there=tmp_path / "a") == f"{name}:question"
    assert (link / as_called_from(link, str(file.relative_to(tmp_path)), there=tmp_path)).samefile(file)


@pytest.mark.parametrize("name", ["org/name", "", "a:b", "\0"])
def test_what_is_no_file_stays_as_it_is(name: str, tmp_path: Path) -> None:
    assert as_called_from(tmp_path, name) == name


def test_absolute_paths_stay_so(tmp_path: Path) -> None:
    assert as_called_from("/", str(tmp_path)) == str(tmp_path)
