"""What a figure means: the one table of metrics, their thresholds, the words for them and where these come from.

    >>> read("relative degradation", 0.12)
    'HIGH'
    >>> describe("sensitivity score").partition(" (")[0]
    'sensitivity score: degradation / noise scale; > 3 CRITICAL, 1.5-3 MODERATE, < 1.5 ROBUST'

A row is read from left to right and the first band that holds the value is its reading. "<" and ">" leave the edge out,
a range includes both its ends; so an edge that two ranges share belongs to the one named first, which is the milder
one. What is not a number reads "undefined", None reads "none", and a metric without bands has no reading: "".

To add a metric, add a row. No torch here: reports read this table too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isnan
from types import MappingProxyType
from typing import Any

from ..errors import InputError, unknown_name

__all__ = ["READINGS", "Band", "Reading", "dashboard_risk", "describe", "read"]


@dataclass(frozen=True)
class Band:
    """Values from `low` to `high` and the word for them; the ends belong to it if it is closed."""

    word: str
    low: float = -inf
    high: float = inf
    closed: bool = True

    def holds(self, value: float) -> bool:
        """Whether the value is in it; infinity is in a band without an end."""
        if self.closed:
            return self.low <= value <= self.high
        return (value > self.low or self.low == -inf) and (value < self.high or self.high == inf)

    def describe(self, unit: str) -> str:
        """As the table writes it: `< 5% LOW`."""
        low, high = _written(self.low, unit), _written(self.high, unit)
        if self.low == -inf and self.high == inf:
            return f"else {self.word}"
        if self.low == -inf:
            return f"{'<=' if self.closed else '<'} {high} {self.word}"
        return f"> {low} {self.word}" if self.high == inf else f"{low}-{high} {self.word}"


@dataclass(frozen=True)
class Reading:
    """One row of the table."""

    metric: str
    formula: str
    bands: tuple[Band, ...] = ()
    unit: str = ""
    """`%` for shares, which are held as 0.05 and shown as 5%; `dB`, `nats`; empty for plain numbers"""
    source: str = ""
    """where the thresholds come from"""
    note: str = ""
    """what to keep in mind"""

    def read(self, value: float | None) -> str:
        """The word for a value."""
        if value is None:
            return "none"
        if isnan(value):
            return "undefined"
        return next((band.word for band in self.bands if band.holds(value)), "")

    def describe(self) -> str:
        """Formula, thresholds, where these come from and what to keep in mind, in one line."""
        bands = ", ".join(band.describe(self.unit) for band in self.bands)
        unit = f" ({self.unit})" if self.unit not in ("", "%") else ""
        parts = [f"{self.metric}{unit}: {self.formula}", bands, self.note]
        return "; ".join(filter(None, parts)) + (f" (thresholds: {self.source})" if bands else "")

    def as_json(self) -> dict[str, Any]:
        """Plain values, for a report."""
        return {
            "formula": self.formula,
            "unit": self.unit,
            "bands": [band.describe(self.unit) for band in self.bands],
            "source": self.source,
            "note": self.note,
        }


def read(metric: str, value: float | None) -> str:
    """The reading of a metric's value, in the words of the table."""
    return _row(metric).read(value)


def describe(metric: str) -> str:
    """A metric's formula and thresholds in one line, with where these come from."""
    return _row(metric).describe()


def dashboard_risk(degradation: float, mape: float | None = None) -> float:
    """Risk points of a device, which "dashboard risk" reads; without a MAPE those of the degradation alone.

    Degradation above 20% counts 50, above 10% 30, above 5% 10; MAPE above 10% counts 30, above 5% 15. A figure that
    is not a number makes the risk one too: what could not be measured is not a low risk.
    """
    return _points(degradation, (0.20, 50), (0.10, 30), (0.05, 10)) + (
        0 if mape is None else _points(mape, (0.10, 30), (0.05, 15))
    )


def _points(value: float, *steps: tuple[float, float]) -> float:
    return value if isnan(value) else next((points for edge, points in steps if value > edge), 0)


def _row(metric: str) -> Reading:
    if metric not in READINGS:
        raise unknown_name("metric", metric, READINGS)
    return READINGS[metric]


def _written(edge: float, unit: str) -> str:
    return f"{edge * 100:g}%" if unit == "%" else f"{edge:g}"


def _below(edge: float, word: str) -> Band:
    return Band(word, high=edge, closed=False)


def _above(edge: float, word: str) -> Band:
    return Band(word, low=edge, closed=False)


def _within(low: float, high: float, word: str) -> Band:
    return Band(word, low, high)


def _otherwise(word: str) -> Band:
    return Band(word)


def _table(rows: Iterable[Reading]) -> Mapping[str, Reading]:
    table: dict[str, Reading] = {}
    for row in rows:
        if row.metric in table:
            raise InputError(f'metric "{row.metric}": there are two rows, expected one')
        if row.bands and not row.source:
            raise InputError(f'metric "{row.metric}": its thresholds do not say where they come from')
        table[row.metric] = row
    return MappingProxyType(table)


_THUMB = "rule of thumb of the method"

READINGS: Mapping[str, Reading] = _table(
    (
        Reading(
            "relative degradation",
            "(clean accuracy - noisy accuracy) / clean accuracy",
            (
                _below(0.05, "LOW"),
                _within(0.05, 0.10, "MODERATE"),
                _within(0.10, 0.20, "HIGH"),
                _above(0.20, "CRITICAL"),
            ),
            unit="%",
            source=f"{_THUMB}, for accuracy under 5% noise",
        ),
        Reading(
            "sensitivity score",
            "degradation / noise scale",
            (_above(3, "CRITICAL"), _within(1.5, 3, "MODERATE"), _below(1.5, "ROBUST")),
            source=f"{_THUMB}, for one operator in all layers",
        ),
        Reading(
            "noise tolerance index",
            "1 / degradation",
            (_above(20, "EXCELLENT"), _within(10, 20, "GOOD"), _within(5, 10, "FAIR"), _below(5, "POOR")),
            source="those of relative degradation, inverted",
            note="none where noise did no harm",
        ),
        Reading(
            "critical threshold",
            "smallest noise scale with more than 10% degradation",
            (
                _above(0.10, "LOW"),
                _within(0.05, 0.10, "MODERATE"),
                _within(0.02, 0.05, "HIGH"),
                _below(0.02, "CRITICAL"),
            ),
            source=f"{_THUMB}: 1-2% noise is a conservative test, 5% the standard one, 10% stress",
        ),
        Reading(
            "SNR",
            "20 log10(mean abs signal / mean abs noise)",
            (_above(40, "EXCELLENT"), _within(30, 40, "GOOD"), _within(20, 30, "FAIR"), _below(20, "POOR")),
            unit="dB",
            source=f"{_THUMB}: 40 dB is 1% noise, 20 dB is 10%",
            note="from the dose that was realised",
        ),
        Reading(
            "gradient ratio",
            "norm(noisy gradients) / norm(clean gradients)",
            (
                _within(0.9, 1.1, "STABLE"),
                _within(0.7, 0.9, "MODERATE"),
                _within(1.1, 1.3, "MODERATE"),
                _within(0.5, 0.7, "CONCERNING"),
                _within(1.3, 1.5, "CONCERNING"),
                _otherwise("CRITICAL"),
            ),
            source=f"{_THUMB}, for training",
        ),
        Reading(
            "sparsity",
            "share of abs(a) < 1e-6",
            (_above(0.70, "tends robust"), _below(0.30, "tends sensitive")),
            unit="%",
            source=f"{_THUMB}; the agreement panel says whether it holds for this model",
        ),
        Reading(
            "MAE",
            "mean abs difference",
            (
                _below(1e-4, "negligible"),
                _below(1e-3, "acceptable"),
                _below(1e-2, "investigate"),
                _otherwise("critical"),
            ),
            source=f"{_THUMB}, for values of size 1",
            note="in the units of the value: see SQNR beside it",
        ),
        Reading(
            "MAPE",
            "mean of abs difference / (abs reference + 1e-8)",
            (_below(0.01, "excellent"), _below(0.05, "good"), _below(0.10, "moderate"), _otherwise("significant")),
            unit="%",
            source=_THUMB,
            note="misleads where the reference is near zero: see SQNR beside it",
        ),
        Reading(
            "Pearson r",
            "cov(reference, measured) / (std(reference) * std(measured))",
            (
                _above(0.99, "excellent"),
                _within(0.95, 0.99, "good"),
                _within(0.90, 0.95, "moderate"),
                _otherwise("poor"),
            ),
            source=_THUMB,
        ),
        Reading("max abs error", "largest abs difference"),
        Reading("SQNR", "10 log10(sum reference^2 / sum (measured - reference)^2)", unit="dB"),
        Reading("cosine", "sum reference * measured / (norm(reference) * norm(measured))"),
        Reading(
            "outlier ratio",
            "channel max abs / median over channels of max abs",
            (
                Band("no outlier", high=10),
                _within(10, 20, "MODERATE"),
                _within(20, 50, "HIGH"),
                _above(50, "CRITICAL"),
            ),
            source=f"{_THUMB}: what a scale shared with the other channels costs in bits is log2 of it",
        ),
        Reading("KL", "sum over tokens of p_clean log(p_clean / p_noisy), mean over predicted positions", unit="nats"),
        Reading("flip rate", "share of positions whose most probable token changed", unit="%"),
        Reading("perplexity", "exp(mean negative log-likelihood of the next token)"),
        Reading("Fisher diagonal", "mean square of log-likelihood gradients", note="high = sensitive"),
        Reading("Hessian trace", "mean of v . H v over random signs v", note="high = sensitive"),
        Reading(
            "risk score",
            "30 per critical operator + 25 per avalanche point + 5 per percent of captured channels that are outliers",
            (_above(100, "HIGH"), _above(50, "MODERATE"), _otherwise("LOW")),
            source=_THUMB,
            note="HIGH: significant hardware validation, MODERATE: targeted mitigation",
        ),
        Reading(
            "dashboard risk",
            "degradation > 20% 50, > 10% 30, > 5% 10; MAPE > 10% 30, > 5% 15",
            (_above(60, "HIGH RISK"), _above(30, "MODERATE RISK"), _otherwise("LOW RISK")),
            source=_THUMB,
        ),
    )
)
