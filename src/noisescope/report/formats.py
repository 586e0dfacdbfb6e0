"""The formats a report can be rendered in, by name: what its file is called, and who makes its bytes.

Renderers are imported when they are asked for, so that a report in JSON needs neither matplotlib nor templates.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from ..errors import InputError, unknown_name
from ..store.encoding import encode

__all__ = ["DEFAULT", "FORMATS", "Format", "formats_with_default", "ordered", "register", "render"]

Render: TypeAlias = Callable[[Mapping[str, Any]], bytes]

DEFAULT = ("json", "md", "html")


@dataclass(frozen=True)
class Format:
    """One format; `text` says whether it can be read on a terminal."""

    name: str
    render: Render
    text: bool

    @property
    def file(self) -> str:
        """What it is called in the directory of a report."""
        return f"report.{self.name}"


_formats: dict[str, Format] = {}
FORMATS: Mapping[str, Format] = MappingProxyType(_formats)
"""name -> format, in the order in which they were registered"""


def register(name: str, *, text: bool) -> Callable[[Render], Render]:
    """A decorator: the function, which gives the bytes for the sections of a report, renders that format."""

    def add(function: Render) -> Render:
        if name in _formats:
            raise ValueError(f'format "{name}" is registered already')
        _formats[name] = Format(name, function, text)
        return function

    return add


def render(sections: Mapping[str, Any], name: str) -> bytes:
    """The bytes of a report in one format."""
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    return FORMATS[name].render(sections)


def ordered(names: Iterable[str]) -> list[str]:
    """Each name once, in the order in which to write them: JSON last, as the sign that all are there."""
    asked = list(dict.fromkeys([names] if isinstance(names, str) else names))
    for name in asked:
        if name not in FORMATS:
            raise unknown_name("format", name, FORMATS)
    if not asked:
        raise InputError(f"formats: got none, expected some of {' '.join(FORMATS)}")
    return sorted(asked, key=lambda name: name == "json")


def formats_with_default(more: str | None) -> list[str]:
    """The formats that are always written and, after them, those of a list with commas."""
    return ordered([*DEFAULT, *(name.strip() for name in (more or "").split(",") if name.strip())])


@register("json", text=True)
def _json(sections: Mapping[str, Any]) -> bytes:
    return encode(sections).encode()


@register("md", text=True)
def _markdown(sections: Mapping[str, Any]) -> bytes:
    from .markdown import render_markdown

    return render_markdown(sections).encode()


@register("html", text=True)
def _html(sections: Mapping[str, Any]) -> bytes:
    from .html import render_html

    return render_html(sections).encode()


@register("png", text=False)
def _png(sections: Mapping[str, Any]) -> bytes:
    from .paper import render_png

    return render_png(sections)


@register("pdf", text=False)
def _pdf(sections: Mapping[str, Any]) -> bytes:
    from .paper import render_pdf

    return render_pdf(sections)
