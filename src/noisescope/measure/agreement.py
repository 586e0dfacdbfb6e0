"""Do the cheap proxies of sensitivity rank the layers of this model as measured sensitivity does?

    panel = agreement_panel({"sensitivity": [...], "fisher": [...], "hessian_trace": [...], "sparsity": [...]})
    print(panel)

    proxy          Spearman               Kendall                 expected  verdict
    fisher         0.91 [0.66, 0.98]      0.76 [0.49, 0.93]       r > 0     trusted
    hessian_trace  0.742 [0.422, 0.896]   0.551 [0.294, 0.745]    r > 0.7   trusted
    sparsity       -0.21 [-0.682, 0.401]  -0.122 [-0.503, 0.312]  r < -0.5  unrelated: its interval includes zero

What theory expects stands beside what was found: curvature and outliers go with sensitivity, sparsity against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import isnan
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from ..keys import Key
from ..specs import Layer
from .intervals import Estimate
from .rank_correlation import RESAMPLES, rank_correlations

__all__ = ["EXPECTED", "Agreement", "Column", "Expectation", "Pair", "Proxy", "agreement_panel", "layer_values"]


@dataclass(frozen=True)
class Expectation:
    """What theory expects of a proxy's correlation with sensitivity: beyond `bound`, on the side of `sign`."""

    sign: Literal[-1, 1]
    bound: float = 0.0

    def holds(self, r: float) -> bool | None:
        """True if the correlation is beyond the bound; None for one that is not defined."""
        return None if isnan(r) else self.sign * r > self.sign * self.bound

    def __str__(self) -> str:
        return f"r {'>' if self.sign > 0 else '<'} {self.bound:g}"


EXPECTED: Mapping[str, Expectation] = {
    "fisher": Expectation(1),
    "hessian_trace": Expectation(1, 0.7),
    "outlier_count": Expectation(1, 0.6),
    "sparsity": Expectation(-1, -0.5),
}
"""proxy -> its correlation with sensitivity; degradation at one noise scale has the same ranks as sensitivity"""

Column: TypeAlias = ArrayLike | Mapping[Layer, float | None]
"""one value per layer"""
Verdict: TypeAlias = Literal["trusted", "unrelated", "contrary", "undefined"]
_REASONS: Mapping[Verdict, str] = {
    "trusted": "",
    "unrelated": "its interval includes zero",
    "contrary": "it ranks the layers the other way round than expected",
    "undefined": "one side is constant, or fewer than three layers have both",
}


@dataclass(frozen=True)
class Pair:
    """How two rankings of the layers agree."""

    left: str
    right: str
    spearman: Estimate
    kendall: Estimate

    def as_json(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {
            "left": self.left,
            "right": self.right,
            "spearman": self.spearman.as_json(),
            "kendall": self.kendall.as_json(),
        }


@dataclass(frozen=True)
class Proxy:
    """Whether one quantity may stand in for measured sensitivity in this model.

    `verdict` judges Spearman's interval: trusted only if all of it is on the expected side of zero. `holds` compares
    the value with what theory expects; a proxy can be trusted for its direction and still fall short of that.
    """

    name: str
    spearman: Estimate
    kendall: Estimate
    expected: Expectation | None
    verdict: Verdict

    @property
    def trusted(self) -> bool:
        """True if the ranking by this proxy can be relied on."""
        return self.verdict == "trusted"

    @property
    def holds(self) -> bool | None:
        """Whether the expectation holds; None where there is none, or no correlation."""
        return None if self.expected is None else self.expected.holds(self.spearman.value)

    def as_json(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {
            "name": self.name,
            "spearman": self.spearman.as_json(),
            "kendall": self.kendall.as_json(),
            "expected": None if self.expected is None else str(self.expected),
            "holds": self.holds,
            "verdict": self.verdict,
            "reason": _REASONS[self.verdict],
        }


@dataclass(frozen=True)
class Agreement:
    """The panel: every proxy against sensitivity, and every pair of columns."""

    proxies: tuple[Proxy, ...]
    pairs: tuple[Pair, ...]
    layers: int
    """that have a sensitivity"""
    resamples: int
    seed: int

    @property
    def distrusted(self) -> tuple[str, ...]:
        """Proxies that cannot be trusted for this model."""
        return tuple(proxy.name for proxy in self.proxies if not proxy.trusted)

    def as_json(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {
            "proxies": [proxy.as_json() for proxy in self.proxies],
            "pairs": [pair.as_json() for pair in self.pairs],
            "distrusted": list(self.distrusted),
            "layers": self.layers,
            "resamples": self.resamples,
            "seed": self.seed,
        }

    def __str__(self) -> str:
        rows = [("proxy", "Spearman", "Kendall", "expected", "verdict")]
        for proxy in self.proxies:
            reason = _REASONS[proxy.verdict]
            verdict = f"{proxy.verdict}: {reason}" if reason else proxy.verdict
            rows.append((proxy.name, str(proxy.spearman), str(proxy.kendall), str(proxy.expected or "-"), verdict))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def agreement_panel(
    values: Mapping[str, Column], *, sensitivity: str = "sensitivity", resamples: int = RESAMPLES, seed: int = 0
) -> Agreement:
    """Rank correlations between columns of one value per layer, with bootstrap intervals and a verdict on each proxy.

    Columns are lists, or dictionaries keyed by layer. `None`, nan or a missing key is a layer without a value; it is
    left out of the pairs it concerns. Known proxies have an expectation (`EXPECTED`); of others only a relation in
    either direction is asked for.
    """
    columns = layer_values(values)
    if sensitivity not in columns:
        raise InputError(f'values: got {" ".join(columns) or "none"}, expected a column "{sensitivity}" among them')
    if resamples < 100:
        raise InputError(f"resamples: got {resamples}, expected >= 100 for a 95% interval")
    key = Key(seed, "agreement")
    pairs = tuple(
        Pair(left, right, *rank_correlations(columns[left], columns[right], key=key, resamples=resamples))
        for left, right in combinations(columns, 2)
    )
    proxies = tuple(_judged(pair, sensitivity) for pair in pairs if sensitivity in (pair.left, pair.right))
    layers = int(np.count_nonzero(~np.isnan(columns[sensitivity])))
    return Agreement(proxies, pairs, layers, resamples, seed)


def layer_values(values: Mapping[str, Column]) -> dict[str, NDArray[np.float64]]:
    """The columns as arrays of one length; dictionaries are put in one order of layers first."""
    layers = list(dict.fromkeys(layer for given in values.values() if isinstance(given, Mapping) for layer in given))
    columns = {
        name: _column(name, [given.get(layer) for layer in layers] if isinstance(given, Mapping) else given)
        for name, given in values.items()
    }
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"values: got columns of different length ({told}), expected one value per layer in each")
    return columns


def _column(name: str, given: Any) -> NDArray[np.float64]:
    try:
        column = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"values[{name!r}]: {error}, expected one number per layer") from None
    if column.ndim != 1:
        raise InputError(f"values[{name!r}]: got an array of {list(column.shape)}, expected one number per layer")
    return column


def _judged(pair: Pair, sensitivity: str) -> Proxy:
    name = pair.left if pair.right == sensitivity else pair.right
    expected = EXPECTED.get(name)
    return Proxy(name, pair.spearman, pair.kendall, expected, _verdict(pair.spearman, expected))


def _verdict(found: Estimate, expected: Expectation | None) -> Verdict:
    if isnan(found.value):
        return "undefined"
    if found.low <= 0 <= found.high:
        return "unrelated"
    if expected is not None and found.value * expected.sign < 0:
        return "contrary"
    return "trusted"
