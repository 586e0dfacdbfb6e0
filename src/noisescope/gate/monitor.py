"""`RobustnessMonitor`: checkpoint after checkpoint against one baseline, in the words of the method documents."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..errors import InputError
from ..measure.readings import read
from ..report import Report
from ..store.encoding import with_numbers
from .baseline import Baseline, Limits, limits_of, open_baseline
from .checking import check
from .history import Entry, append, entry_of, refuse_other
from .judging import RESOLUTION, is_worse
from .result import RobustnessCheck

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RobustnessMonitor"]


class RobustnessMonitor:
    """Holds the checkpoints of a training against a baseline, and remembers what became of them.

    >>> monitor = RobustnessMonitor("baseline.json")                                         # doctest: +SKIP
    >>> monitor.check_checkpoint(model, None, checkpoint_step=2000, tokenizer=tokenizer)     # doctest: +SKIP
    {'checkpoint_step': 2000, 'pass': True, 'max_degradation': 0.081, 'warnings': [], 'outcome': 'passed', ...}
    """

    def __init__(
        self,
        baseline: "Baseline | Report | Mapping[str, Any] | str | Path",
        *,
        max_degradation: float | None = None,
        resolution: float = RESOLUTION,
        history_file: str | Path | None = None,
    ) -> None:
        """
        Args:
            baseline: a `Baseline` or its file; a report of `diagnose`, its file or its sections, or what
                `operator_level_diagnosis` returns, are good for limits alone.
            max_degradation: as for `check`.
            resolution: as for `check`.
            history_file: also keep the history there.
        """
        self.baseline = _opened(baseline)
        self.history: list[dict[str, Any]] = []
        """what `check_checkpoint` returned, one after the other"""
        self._max_degradation, self._resolution = max_degradation, resolution
        self._history_file = history_file
        self._entries: list[Entry] = []

    def check_checkpoint(
        self, model: nn.Module, test_data: object, checkpoint_step: int | str, *, tokenizer: Any = None
    ) -> dict[str, Any]:
        """{checkpoint_step, pass, max_degradation, warnings: [{operator, baseline, current, severity, ...}], ...}.

        There is a warning for every operator that costs more than 20% and more than a point more than in the baseline;
        its `significant` says whether that is more than chance. `pass` is True if the check passed: False if it failed,
        and if it is inconclusive (see `outcome`). `check` has all of it.
        """
        found = check(
            model,
            test_data,
            baseline=self.baseline,
            max_degradation=self._max_degradation,
            resolution=self._resolution,
            tokenizer=tokenizer,
            name=str(checkpoint_step),
            once_asked=self._refuse_other_history,
        )
        entry = entry_of(found, str(checkpoint_step))
        if self._history_file is not None:
            self._entries = append(self._history_file, found.sections["question"], entry)
        else:
            self._entries.append(entry)
        self.history.append(
            {
                "checkpoint_step": checkpoint_step,
                "pass": found.passed,
                "max_degradation": found.max_degradation,
                "warnings": self._warnings(found),
                "outcome": found.outcome,
                "check": found,
            }
        )
        return self.history[-1]

    def _refuse_other_history(self, asked: Mapping[str, Any]) -> None:
        if self._history_file is not None:
            refuse_other(self._history_file, asked)

    def plot_robustness_trend(self) -> "Figure":
        """A matplotlib figure of what noise on each operator cost, checkpoint by checkpoint."""
        from ..report.check.trend import draw_trend

        if not self._entries:
            raise InputError("history: no checkpoint was checked yet; call check_checkpoint first")
        return draw_trend([entry.as_json() for entry in self._entries], self._max_degradation)

    def _warnings(self, found: RobustnessCheck) -> list[dict[str, Any]]:
        known = self.baseline.degradation if isinstance(self.baseline, Limits) else {}
        warnings = []
        for row in found.rows:
            before = row.baseline if row.baseline is not None else known.get(row.operator)
            if before is None or not isfinite(row.current):
                continue
            if row.outcome == "failed" or is_worse(before, row.current - before):
                warnings.append(
                    {
                        "operator": row.operator,
                        "baseline": before,
                        "current": row.current,
                        "severity": read("relative degradation", row.current),
                        "significant": row.outcome == "failed",
                    }
                )
        return warnings


def _opened(baseline: object) -> Baseline | Limits:
    if isinstance(baseline, (Baseline, Limits)):
        return baseline
    if isinstance(baseline, (str, Path)):
        return open_baseline(baseline)
    if isinstance(baseline, Report):
        return limits_of(baseline.sections, "baseline")
    if isinstance(baseline, Mapping):
        given = with_numbers(baseline)
        return limits_of({"operator_analysis": given.get("operator_analysis", given), **given}, "baseline")
    raise InputError(f"baseline: got {type(baseline).__name__}, expected a baseline, its file or a report")
