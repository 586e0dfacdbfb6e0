"""The formats: a registry that refuses a name twice, files that are written together, JSON last."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from noisescope import store
from noisescope.errors import InputError, StoreError
from noisescope.report import Report, formats
from noisescope.report.formats import FORMATS, ordered, register, render

pytestmark = pytest.mark.usefixtures("one_thread")
BEGINS = {"json": b"{\n", "md": b"## noisescope", "html": b"<!doctype html>", "png": b"\x89PNG", "pdf": b"%PDF-"}


@pytest.mark.parametrize("name", BEGINS)
def test_every_format_is_rendered_the_same_each_time(whole: dict[str, Any], name: str) -> None:
    data = render(whole, name)
    assert data.lower().startswith(BEGINS[name].lower())
    assert render(whole, name) == data
    assert list(FORMATS) == list(BEGINS)


def test_a_format_cannot_be_registered_twice(whole: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match='format "md" is registered already'):
        register("md", text=True)(lambda sections: b"")
    assert FORMATS["md"].render(whole)


def test_unknown_formats_are_named_with_the_nearest(whole: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'unknown format "htm", did you mean "html"\? \(json md html png pdf\)'):
        Report(whole).save(tmp_path / "out", formats=["json", "htm"])
    with pytest.raises(InputError, match="formats: got none"):
        Report(whole).save(tmp_path / "out", formats=())
    assert not (tmp_path / "out").exists()


def test_saving_writes_json_last(whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real = store.atomic_write
    monkeypatch.setattr(store, "atomic_write", lambda path, data: (order.append(path.name), real(path, data))[1])
    assert Report(whole).save(tmp_path) == tmp_path / "report.html"
    assert order == ["report.md", "report.html", "report.json"]
    assert Report(whole).save(tmp_path, formats=["json", "md"]) == tmp_path / "report.md"
    assert Report(whole).save(tmp_path, formats="json") == tmp_path / "report.json"
    assert ordered(["json", "json", "pdf"]) == ["pdf", "json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json", "report.md"]
    assert (tmp_path / "report.md").read_text() == Report(whole).to_markdown()


def test_a_renderer_that_fails_leaves_nothing(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(sections: Any) -> bytes:
        raise RuntimeError("out of ink")

    monkeypatch.setitem(formats._formats, "html", formats.Format("html", broken, True))
    with pytest.raises(RuntimeError, match="out of ink"):
        Report(whole).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_said_before_json_is_there(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store.atomic_write

    def full(path: Path, data: bytes) -> None:
        if path.suffix == ".html":
            raise StoreError("no space")
        real(path, data)

    monkeypatch.setattr(store, "atomic_write", full)
    with pytest.raises(StoreError, match="no space"):
        Report(whole).save(tmp_path)
    assert not (tmp_path / "report.json").exists()


def test_json_and_markdown_need_no_heavy_library(whole: dict[str, Any], tmp_path: Path) -> None:
    file = Report(whole).save(tmp_path, formats=["json"])
    code = (
        "import sys; from noisescope.report import Report; report = Report.load(sys.argv[1]); "
        "report.to_markdown(); report.to_json(); str(report); "
        "assert not {'torch', 'transformers', 'numpy', 'matplotlib', 'jinja2'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code, str(file)], check=True)


def test_the_same_bytes_in_another_place_and_with_another_hash_order(whole: dict[str, Any], tmp_path: Path) -> None:
    """Hash seed, time zone, locale and working directory are not in any format."""
    file = Report(whole).save(tmp_path / "run", formats=["json"])
    code = (
        "import sys, hashlib; from noisescope.report import Report; from noisescope.report.formats import *; "
        "sections = Report.load(sys.argv[1]).sections; "
        "print(*(hashlib.sha256(render(sections, name)).hexdigest() for name in FORMATS))"
    )
    found = set()
    for seed, zone, locale in (("1", "UTC", "C"), ("2", "Asia/Tokyo", "C.UTF-8")):
        home = tmp_path / seed
        home.mkdir()
        environment = os.environ | {"PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": locale, "MPLCONFIGDIR": str(home)}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        given = [sys.executable, "-c", code, str(file)]
        run = subprocess.run(given, check=True, cwd=home, env=environment, capture_output=True, text=True)
        found.add(run.stdout)
    assert len(found) == 1
