"""What a page consists of, as a browser without scripts would read it: elements, attributes and text."""

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}
SVG = {"path", "rect", "line", "circle"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parents: tuple[str, ...]
    text: str = ""


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[Element] = []
        self.open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice: {tag} {attrs}"
        element = Element(tag, {name: value or "" for name, value in attrs}, tuple(part.tag for part in self.open))
        self.found.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a beginning"
        assert self.open[-1].tag == tag, f"</{tag}> inside <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


@dataclass
class Page:
    """A page that was read; `source` is its text."""

    source: str
    elements: list[Element] = field(default_factory=list)

    @classmethod
    def read(cls, source: str) -> "Page":
        """Elements must be closed in order."""
        reader = _Reader()
        reader.feed(source)
        reader.close()
        assert not reader.open, f"left open: {[element.tag for element in reader.open]}"
        return cls(source, reader.found)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            element for element in self.elements if element.tag == tag and wanted.items() <= element.attributes.items()
        ]

    def one(self, tag: str, **attributes: str) -> Element:
        (found,) = self.all(tag, **attributes)
        return found

    @property
    def ids(self) -> list[str]:
        return [element.attributes["id"] for element in self.elements if "id" in element.attributes]

    @property
    def data(self) -> Any:
        """The JSON block."""
        return json.loads(self.one("script", id="report-data").text)

    @property
    def text(self) -> str:
        """Everything that is read by a person, each run of white space as one space."""
        shown = "".join(
            element.text for element in self.elements if element.tag in ("main", "header", "footer", "title")
        )
        return re.sub(r"\s+", " ", shown)

    @property
    def outline(self) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """Tag, names of attributes and parents of every element: what names in a report must never change."""
        return [(part.tag, tuple(part.attributes), part.parents) for part in self.elements]

    def table(self, caption: str) -> list[list[str]]:
        """The rows of a table, as text."""
        rows: list[list[str]] = []
        inside = False
        for part in self.elements:
            if part.tag == "table":
                inside = caption in part.text
            if inside and part.tag == "tr":
                rows.append([])
            if inside and part.tag in ("th", "td"):
                rows[-1].append(" ".join(part.text.split()))
        assert rows, f"no table {caption!r}"
        return rows
