"""The files of a result that has a page, Markdown and JSON: their names, and who makes the bytes of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from .. import store
from ..errors import unknown_name
from ..store.encoding import encode
from .rows import Sections

__all__ = ["Files", "Render"]

Render: TypeAlias = Callable[[Sections], str]


@dataclass(frozen=True)
class Files:
    """What a result is saved as."""

    stem: str
    renderers: Mapping[str, Render]
    """format -> its renderer, in the order in which they are written: JSON last, as the sign that all are there"""

    @classmethod
    def of(cls, stem: str, package: str) -> "Files":
        """As a page, Markdown and JSON, by the `page` and `markdown` of a package, imported when they are asked for."""

        def later(module: str, function: str) -> Render:
            return lambda sections: str(getattr(import_module(f"{package}.{module}"), function)(sections))

        return cls(
            stem, {"md": later("markdown", "render_markdown"), "html": later("page", "render_page"), "json": encode}
        )

    @property
    def names(self) -> dict[str, str]:
        """Format -> what its file is called."""
        return {name: f"{self.stem}.{name}" for name in self.renderers}

    def render(self, sections: Sections, name: str) -> str:
        """The result in one format; the same sections give the same text."""
        if name not in self.renderers:
            raise unknown_name("format", name, self.renderers)
        return self.renderers[name](sections)

    def save(self, sections: Sections, directory: str | Path) -> Path:
        """All files into a directory, which is made if needed; the page. Files that are there are replaced.

        Everything is rendered before anything is written.
        """
        rendered = {file: self.render(sections, name).encode() for name, file in self.names.items()}
        home = store.make_directory(Path(directory))
        for file, data in rendered.items():
            store.atomic_write(home / file, data)
        return home / self.names["html"]
