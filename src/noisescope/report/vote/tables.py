"""The tables of a vote: everyone against everyone, the pairs, and where each trace was made."""

from ..page.table import Kind, Table
from ..rows import Sections
from .words import pair_word, size

__all__ = ["environments", "everyone", "pairs"]

ENVIRONMENT = ("dtype", "device", "attention", "emulated", "torch")
"""fields of an environment that are shown"""


def everyone(sections: Sections) -> Table:
    """One row and one column a trace; a cell is how far two of them are apart."""
    names = [trace["file"] for trace in sections["traces"]]
    found = {frozenset((pair["first"], pair["second"])): pair for pair in sections["pairs"]}
    columns: dict[str, Kind] = {"": "name", **{f"{at}. {name}": "text" for at, name in enumerate(names, 1)}}
    rows = [
        (
            f"{at}. {mine}",
            *(
                "" if mine == other else f"{pair_word(pair := found[frozenset((mine, other))])}, {size(pair)}"
                for other in names
            ),
        )
        for at, mine in enumerate(names, 1)
    ]
    return Table.of("The largest error between two of them, in units of what is tolerated", columns, rows)


def pairs(sections: Sections) -> Table:
    """Every pair, and where it diverges."""
    columns: dict[str, Kind] = {
        "first": "name",
        "second": "name",
        "so they": "text",
        "error / tolerance": "figure",
        "from here on": "path",
    }
    rows = [
        (pair["first"], pair["second"], pair_word(pair), size(pair), pair["site"] or "") for pair in sections["pairs"]
    ]
    return Table.of("Every pair", columns, rows)


def environments(sections: Sections) -> Table:
    """Where they were made."""
    columns: dict[str, Kind] = {"trace": "name", **dict.fromkeys(ENVIRONMENT, "text")}
    rows = [
        (trace["file"], *(str(trace["environment"].get(name) or "none") for name in ENVIRONMENT))
        for trace in sections["traces"]
    ]
    return Table.of("Where they were made", columns, rows)
