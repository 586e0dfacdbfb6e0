"""The files of a comparison, and who makes the bytes of each. Renderers are imported when they are asked for."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from ... import store
from ...errors import unknown_name
from ...store.encoding import encode
from ..rows import Sections

__all__ = ["FILES", "render_comparison", "save_comparison"]

Render: TypeAlias = Callable[[Sections], str]


def _markdown(sections: Sections) -> str:
    from .markdown import render_markdown

    return render_markdown(sections)


def _page(sections: Sections) -> str:
    from .page import render_page

    return render_page(sections)


_RENDERERS: Mapping[str, Render] = MappingProxyType({"md": _markdown, "html": _page, "json": encode})
"""in the order in which they are written: JSON last, as the sign that all are there"""
FILES: Mapping[str, str] = MappingProxyType({name: f"comparison.{name}" for name in _RENDERERS})
"""format -> what its file is called"""


def render_comparison(sections: Sections, name: str) -> str:
    """A comparison in one format; the same sections give the same text."""
    if name not in _RENDERERS:
        raise unknown_name("format", name, _RENDERERS)
    return _RENDERERS[name](sections)


def save_comparison(sections: Sections, directory: str | Path) -> Path:
    """All files into a directory, which is made if needed; the page. Files that are there are replaced.

    Everything is rendered before anything is written.
    """
    rendered = {file: render_comparison(sections, name).encode() for name, file in FILES.items()}
    home = store.make_directory(Path(directory))
    for file, data in rendered.items():
        store.atomic_write(home / file, data)
    return home / FILES["html"]
