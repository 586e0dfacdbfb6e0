"""Pictures and pages: the same bytes each time, nothing of the caller's touched, every kind of report drawn."""

import random
import re
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.figure import Figure
from PIL import Image

from hostile_strings import poisoned
from noisescope.report.figures import in_ascii
from noisescope.report.paper import panels
from noisescope.report.paper.pictures import render_pdf, render_png
from noisescope.report.paper.style import drawable, printable
from noisescope.report.rows import operators, windows
from odd_reports import damaged, figure, variants

pytestmark = pytest.mark.usefixtures("one_thread")
RENDERERS = {"png": render_png, "pdf": render_pdf}


def pages_of(pdf: bytes) -> int:
    return len(re.findall(rb"/Type /Page\b", pdf))


def words_of(pdf: bytes) -> str:
    """What the pages show, from their streams: strings in parentheses, with kerning between them taken out."""
    streams = (
        zlib.decompressobj().decompress(part) for part in re.findall(rb"stream\n(.*?)endstream", pdf, re.DOTALL)[:80]
    )
    shown = b"\n".join(stream for stream in streams if b" Tf" in stream).decode("latin-1")
    return "\n".join("".join(re.findall(r"\(((?:\\.|[^\\)])*)\)", line)) for line in shown.splitlines())


@pytest.mark.parametrize("name", RENDERERS)
def test_the_same_report_gives_the_same_bytes(
    whole: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RENDERERS[name](whole)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "text.parse_math": False}):
        assert RENDERERS[name](whole) == first, "neither the clock nor the user's settings are in it"
    for word in (b"CreationDate", b"ModDate", b"tIME", b"Matplotlib"):
        assert word not in first


@pytest.mark.parametrize("name", ["whole", "operator", "layer", "channel", "failed", "odd", "first"])
def test_every_kind_of_report_is_drawn_without_a_warning(whole: dict[str, Any], name: str) -> None:
    sections = variants(whole)[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture, pages = render_png(sections), render_pdf(sections)
    assert Image.open(BytesIO(picture)).size == (1920, 1080)
    assert 1 <= pages_of(pages) <= 12


HOSTILE = ["$x^2$", "$\\frac{", "\u4e2d\u6587 \U0001f600", "\u202egnp", "a\nb\x00", "\udce9", "_x", "%s{}"]
DRAWN = [
    pytest.param(name, text, marks=[pytest.mark.slow] if at % 2 != own else [])
    for own, name in enumerate(RENDERERS)
    for at, text in enumerate(HOSTILE)
]
"""every text in both; by default in a picture or on pages"""


@pytest.mark.parametrize(("name", "text"), DRAWN)
def test_hostile_names_are_drawn_as_they_are(sections: dict[str, Any], name: str, text: str) -> None:
    sections = poisoned(sections, text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert RENDERERS[name](sections)


def test_what_the_font_lacks_is_a_mark() -> None:
    assert printable("caf\u00e9 \u4e2d\n$") == "caf\u00e9 \ufffd\\n$"
    assert printable("a" * 200, longest=10) == "aaaaaaa..."


def test_values_that_have_no_place_are_left_out() -> None:
    assert drawable(0.5) == drawable(0.5, log=True) == 0.5
    assert drawable(1e300) == 1e9
    for value in (float("nan"), float("inf"), -float("inf")):
        assert drawable(value) != drawable(value)
    assert drawable(0.0) == 0.0
    assert drawable(0.0, log=True) != drawable(0.0, log=True)


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_what_loads_can_be_drawn(whole: dict[str, Any], tmp_path: Path, count: int) -> None:
    reports = list(damaged(whole, tmp_path, random.Random(5), count))
    assert len(reports) >= count // 5
    for at, report in enumerate(reports):
        assert list(RENDERERS.values())[at % 2](report.sections)


def test_nothing_global_is_touched(whole: dict[str, Any]) -> None:
    before = dict(matplotlib.rcParams)
    for render in RENDERERS.values():
        render(whole)
    assert dict(matplotlib.rcParams) == before


def test_pyplot_and_torch_are_not_imported(whole: dict[str, Any], tmp_path: Path) -> None:
    from noisescope.store.encoding import encode

    (tmp_path / "report.json").write_text(encode(whole))
    code = (
        "import sys; from noisescope.store.encoding import decode; from noisescope.report.paper.pictures import *; "
        "sections = decode(open(sys.argv[1]).read()); render_png(sections); render_pdf(sections); "
        "assert not {'torch', 'transformers', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "report.json")], check=True)


# --- what the panels show ---------------------------------------------------------------------------------------


def drawn(draw: Callable[..., None], *arguments: Any, axes: int = 1, **more: Any) -> list[Any]:
    found = list(Figure().subplots(1, axes, squeeze=False)[0])
    draw(*found, *arguments, **more)
    return found


def test_the_map_has_every_cell_at_its_place(sections: dict[str, Any]) -> None:
    axes, bar = drawn(panels.draw_map, sections, axes=2)
    grid = axes.images[0].get_array()
    values = sorted(cell["kl"]["value"] for cell in sections["map"]["cells"])
    assert sorted(grid.compressed().tolist()) == pytest.approx(values)
    checked = sum(len(marks.get_offsets()) for marks in axes.collections)
    assert checked == sum(bool(cell["measured"]) for cell in sections["map"]["cells"])
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names[0] == "embed"
    assert names[-2:] == ["final_norm", "head"]
    assert bar.get_title(loc="center") == "KL"


def test_windows_and_operators_show_their_figures(sections: dict[str, Any]) -> None:
    name = next(iter(sections["layer_analysis"]))
    sections["executive_summary"]["avalanche_points"] = [{"layer_range": name, "degradation": 0.3, "severity": "HIGH"}]
    (axes,) = drawn(panels.draw_windows, sections)
    heights = [value for line in axes.lines[:2] for value in line.get_ydata()]
    assert sorted(heights) == pytest.approx(sorted(100 * row.lost.value for row in windows(sections)))
    assert "avalanche point" in axes.get_legend_handles_labels()[1]
    (axes,) = drawn(panels.draw_operators, sections, by_kl=True)
    assert [line.get_xdata()[0] for line in axes.lines] == pytest.approx([r.kl.value for r in operators(sections)])
    assert [label.get_text() for label in axes.get_yticklabels()] == [row.name for row in operators(sections)]


def test_the_pdf_holds_the_words_and_the_numbers_of_its_pages(sections: dict[str, Any]) -> None:
    pdf = render_pdf(sections)
    count = pages_of(pdf)
    assert count >= 5
    assert b"/Title (noisescope report)" in pdf
    words = words_of(pdf)
    assert "Where it is fragile" in words
    assert f"1 / {count}" in words
    for row in operators(sections):
        assert f"{row.kl}" in words


def test_what_the_readers_fonts_lack_is_drawn_in_ours(sections: dict[str, Any]) -> None:
    plain = render_pdf(sections)
    assert b"/BaseFont /Helvetica" in plain
    sections["environment"]["device"] = "\u03bb\u2265"
    assert b"lambda" in render_pdf(sections)
    assert b"lambda" not in plain


def test_a_cell_that_is_not_finite_is_drawn_as_the_worst_and_crossed(sections: dict[str, Any]) -> None:
    cells = sections["map"]["cells"]
    cells[0]["kl"], cells[1]["kl"] = figure(float("inf")), figure(0.0)
    axes, _ = drawn(panels.draw_map, sections, axes=2)
    grid = axes.images[0].get_array()
    assert grid.count() == len(cells)
    dots, crosses = axes.collections
    assert len(crosses.get_offsets()) == sum(cell["disagrees"] or cell is cells[0] for cell in cells)
    across, down = map(int, crosses.get_offsets()[0])
    assert grid[down, across] == grid.max()
    assert len(dots.get_offsets()) == sum(bool(cell["measured"]) and not cell["disagrees"] for cell in cells[1:])


def test_the_pdf_says_how_much_it_leaves_out(sections: dict[str, Any]) -> None:
    row = next(iter(sections["metrics"]["critical_thresholds"].values()))
    sections["metrics"]["critical_thresholds"] = {f"L{at}": row for at in range(55)}
    assert "15 more in report.json." in words_of(render_pdf(sections))


def test_the_pdf_shows_each_row_with_its_own_figures(sections: dict[str, Any]) -> None:
    words = words_of(render_pdf(sections)).splitlines()
    for row in operators(sections):
        at = [index for index, word in enumerate(words) if word == row.name]
        shown = [" ".join(filter(None, words[index : index + 40])) for index in at]
        assert any(
            text.startswith(f"{row.name} {in_ascii(str(row.kl))} {in_ascii(row.lost.percent)} {row.severity}")
            for text in shown
        )
