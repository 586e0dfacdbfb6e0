"""`noisescope report`: a report again, in any format, or two of them side by side; nothing is run.

$ noisescope report noisescope-out
Risk: HIGH (score 130)   61 forward passes
...
Report: noisescope-out/report.html

$ noisescope report noisescope-out --format pdf,png
noisescope-out/report.pdf
noisescope-out/report.png

$ noisescope report before after
differs: torch 2.12.0 -> 2.13.0
asked alike, of the same data
1 row significantly worse, 0 better, 48 not distinguishable; map: 0 worse and 0 better of 30 layers, ...
...

$ noisescope report before after --format html
differences.html
"""

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError, unknown_name
from .screen import show

__all__ = ["report"]

_BINARY = (".png", ".pdf")
_FOR_THE_SCREEN = ("md", "json")
"""formats of a comparison that are read, or piped, where they were asked for; a page is a file"""


def report(
    reports: Annotated[
        list[Path],
        typer.Argument(help="A directory with a report, or its JSON file; two to compare.", metavar="REPORT"),
    ],
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="md, html, json, png or pdf, of two reports md, html or json; several with commas; none: the summary.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Directory, or - for the screen. None: beside the report; of two, a single md or json goes to the "
            "screen, anything else into the current directory, as differences.html.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
) -> None:
    """Render a report again, or show what got better and worse from one to another."""
    asked = list(dict.fromkeys(name.strip() for given in formats or () for name in given.split(",")))
    if len(reports) > 2:
        raise InputError(f"REPORT: got {len(reports)}, expected one, or two to compare")
    if output is not None and not asked:
        raise InputError("--output: nothing to write; say what with --format, such as --format md")
    if len(reports) == 1:
        _render(reports[0], asked, output, overwrite=overwrite)
    else:
        _compare(reports[0], reports[1], asked, output, overwrite=overwrite)


def _render(path: Path, asked: list[str], output: Path | None, *, overwrite: bool) -> None:
    from ..report import Report
    from ..report.formats import FORMATS, ordered, render

    _refuse_unknown(asked, FORMATS)
    found, home = Report.load(path), path if path.is_dir() else path.parent
    if not asked:
        page = home / FORMATS["html"].file
        show(f"{found}\n\nReport: {page if page.exists() else path}\n")
        return
    files = {FORMATS[name].file: partial(render, found.sections, name) for name in ordered(asked)}
    _deliver(files, home if output is None else output, overwrite=overwrite)


def _compare(before: Path, after: Path, asked: list[str], output: Path | None, *, overwrite: bool) -> None:
    from ..report import Report
    from ..report.comparison import RENDERERS, Differences, render_text

    _refuse_unknown(asked, RENDERERS)
    found = Differences.between(Report.load(before).sections, Report.load(after).sections)
    if not asked:
        show(render_text(found))
        return
    files = {f"differences.{name}": lambda name=name: RENDERERS[name](found).encode() for name in asked}
    read_here = len(asked) == 1 and asked[0] in _FOR_THE_SCREEN
    _deliver(files, output or Path("-" if read_here else "."), overwrite=overwrite)


def _refuse_unknown(asked: Iterable[str], known: Iterable[str]) -> None:
    names = list(known)
    for name in asked:
        if name not in names:
            raise InputError(f"--format: {unknown_name('format', name, names)}")


def _deliver(files: Mapping[str, Callable[[], bytes]], home: Path, *, overwrite: bool) -> None:
    """All of the files into a directory, or none of them if one is in the way; a single text to the screen."""
    from .. import store

    if home == Path("-"):
        name, *more = files
        if more or name.endswith(_BINARY):
            raise InputError(f"--output -: got {' '.join(files)}, expected one text; name a directory for these")
        show(files[name]().decode())
        return
    for name in files:
        _refuse_existing(home / name, overwrite=overwrite)
    with _no_collecting():
        rendered = {home / name: render() for name, render in files.items()}
    store.make_directory(home)
    for target, data in rendered.items():
        store.atomic_write(target, data)
    show("".join(f"{target}\n" for target in rendered))


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Without looks for garbage: drawing makes many objects and hardly a cycle, and the process ends soon after."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _refuse_existing(target: Path, *, overwrite: bool) -> None:
    if target.is_dir():
        raise InputError(f"{target}: is a directory, expected a file or nothing; choose another --output")
    if os.path.lexists(target) and not overwrite:
        raise InputError(f"{target}: is there already; choose another directory (--output) or --overwrite")
