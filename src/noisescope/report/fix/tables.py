"""The tables of a minimal fix: what to raise, and what every step measured."""

from ..figures import Interval, number
from ..layers import label
from ..page.table import Kind, Table
from ..rows import Sections

__all__ = ["raised", "steps"]


def raised(sections: Sections) -> Table:
    """The groups to raise, the most effective first."""
    columns: dict[str, Kind] = {"": "figure", "layer": "name", "weights": "path", "KL that it saves": "figure"}
    rows = [
        (str(at), label(row["layer"]), ", ".join(row["paths"]), number(row["gain"]))
        for at, row in enumerate(sections["raised"], 1)
    ]
    return Table.of("Weights to raise, the most effective first", columns, rows)


def steps(sections: Sections) -> Table:
    """What was run."""
    columns: dict[str, Kind] = {"groups raised": "figure", "KL measured, nats per token": "figure", "within": "text"}
    rows = [
        (str(step["raised"]), str(Interval.of(step["kl"])), "yes" if step["within"] else "no")
        for step in sections["steps"]
    ]
    return Table.of("Every step, run", columns, rows)
