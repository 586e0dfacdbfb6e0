"""The sensitivity map as rows that can be sorted, printed and handed to pandas.

>>> print(report.map.top(3))                                  # doctest: +SKIP
layer  operator  KL, nats/token           how
head   linear    0.460 [0.440, 0.480]     measured
0      rms_norm  0.0310 [0.0280, 0.0340]  predicted
...
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .escaping import short
from .figures import figure, in_ascii
from .rows import sortable
from .summary import columns

if TYPE_CHECKING:
    import pandas

__all__ = ["MapTable"]


@dataclass(frozen=True)
class MapTable:
    """Rows of the map, each a mapping with layer, operator, kl (with its interval) and how it was found."""

    rows: Sequence[Mapping[str, Any]]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def top(self, count: int = 10) -> "MapTable":
        """The most fragile cells, the worst first."""
        return MapTable(sorted(self.rows, key=lambda row: -sortable(row["kl"]["value"]))[:count])

    def to_pandas(self) -> "pandas.DataFrame":
        """A data frame, one row a cell."""
        import pandas

        flat = [
            {**{key: row[key] for key in ("layer", "operator", "how")}, **{f"kl_{k}": v for k, v in row["kl"].items()}}
            for row in self.rows
        ]
        return pandas.DataFrame(flat)

    def __str__(self) -> str:
        head = ("layer", "operator", "KL, nats/token", "how")
        lines = [(*map(short, (row["layer"], row["operator"], figure(row["kl"]), row["how"])),) for row in self.rows]
        return in_ascii(columns([head, *lines]))

    __repr__ = __str__
