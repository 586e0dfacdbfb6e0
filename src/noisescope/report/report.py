"""The report of a diagnosis. Sections are plain values, so that what is shown is what was saved."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import store
from ..errors import InputError
from ..models.boundary import one_line
from ..store.encoding import decode, encode
from .formats import DEFAULT, FORMATS, ordered, render
from .schema import upgraded
from .summary import summarise
from .table import MapTable

__all__ = ["Report"]

LARGEST = 256 << 20
"""bytes of a report.json; that of a model of 30 layers has half a million"""


@dataclass(frozen=True)
class Report:
    """What a diagnosis found. `sections` has the documented keys; print it for the summary.

    Nothing in it depends on the clock, the host or a path: the same question gives the same bytes.
    """

    sections: Mapping[str, Any]

    @property
    def map(self) -> MapTable:
        """The sensitivity map at the noise scale of the run, one row a cell."""
        return MapTable(self.sections.get("map", {}).get("cells", ()))

    @property
    def failures(self) -> dict[str, str]:
        """What could not be measured, and why: rows of the levels by name, then checks and searches."""
        found = {**self.sections["operator_analysis"], **self.sections["layer_analysis"]}
        for part in ("together", "groups", "layers"):
            found |= {f"{part} {name}": row for name, row in self.sections["metrics"].get(part, {}).items() if row}
        others = dict[str, str](self.sections["metrics"].get("failed", {}))
        return {name: str(row["failed"]) for name, row in found.items() if "failed" in row} | others

    @property
    def risk(self) -> str:
        """HIGH, MODERATE or LOW."""
        return str(self.sections["executive_summary"]["overall_risk_level"])

    def to_json(self) -> str:
        """Strict JSON; the same report gives the same text."""
        return encode(self.sections)

    def to_html(self) -> str:
        """One page that holds everything it shows, to be opened in a browser; the same report gives the same text."""
        from .html import render_html

        return render_html(self.sections)

    def _repr_html_(self) -> str:
        from .notebook import render_summary

        return render_summary(self.sections)

    def to_markdown(self) -> str:
        """Markdown for a pull request; the same report gives the same text."""
        return render(self.sections, "md").decode()

    def save(self, directory: str | Path, formats: Iterable[str] = DEFAULT) -> Path:
        """Writes `report.json`, `report.md` and so on into a directory, which is made if needed; the one to open.

        That is the page, if it is among them, else the first. Everything is rendered before anything is written, and
        report.json is written last: who sees it finds the others too. Files that are there are replaced.
        """
        rendered = {name: render(self.sections, name) for name in ordered(formats)}
        home = store.make_directory(Path(directory))
        for name, data in rendered.items():
            store.atomic_write(home / FORMATS[name].file, data)
        return home / FORMATS["html" if "html" in rendered else next(iter(rendered))].file

    @classmethod
    def load(cls, path: str | Path) -> "Report":
        """The report of a directory, or of a JSON file; one of an earlier version is read as this one."""
        file = Path(path)
        if (verdict := file / "verdict.json").exists() and not (file / "report.json").exists():
            raise InputError(f"{one_line(verdict)}: the verdict of `locate`, not a report; its page is verdict.html")
        file = file / "report.json" if file.is_dir() else file
        try:
            sections = decode(store.read_whole(file, LARGEST).decode("utf-8"))
        except OSError as error:
            raise InputError(f"{one_line(file)}: cannot be read ({error.strerror})") from None
        except ValueError as error:
            raise InputError(f"{one_line(file)}: not a report ({' '.join(str(error).split())})") from None
        return cls(upgraded(sections, one_line(file)))

    def summary(self, *, verbose: bool = False) -> str:
        """What is fragile and what to do, for a terminal; `verbose` shows every row."""
        return summarise(self.sections, most=None) if verbose else summarise(self.sections)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"<Report: risk {self.risk}, {len(self.map)} cells>"
