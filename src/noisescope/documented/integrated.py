"""`IntegratedDiagnostic`: the whole diagnosis as the method documents spell it."""

from pathlib import Path
from typing import Any

from torch import nn

from .. import store
from ..diagnosis import diagnose
from ..errors import InputError
from ..report import Report
from ..report.formats import DEFAULT, ordered, render
from ..specs import DiagnosisSpec

__all__ = ["IntegratedDiagnostic"]


class IntegratedDiagnostic:
    """Operators, layers and channels in one report, over `noisescope.diagnose`."""

    def __init__(
        self, model: nn.Module, test_data: object, calibration_data: object = None, *, tokenizer: Any = None
    ) -> None:
        self.model, self.test_data, self.calibration_data = model, test_data, calibration_data
        self.tokenizer = tokenizer
        self.report: Report | None = None

    def run_full_diagnosis(
        self, noise_scale: float = 0.05, window_size: int = 3, outlier_threshold: float = 10.0
    ) -> dict[str, Any]:
        """Runs all levels; the sections of the report."""
        spec = DiagnosisSpec(noise_scale=noise_scale, window_size=window_size, outlier_threshold=outlier_threshold)
        self.report = diagnose(
            self.model, self.test_data, spec=spec, tokenizer=self.tokenizer, calibration_data=self.calibration_data
        )
        return self.generate_report()

    def generate_report(self) -> dict[str, Any]:
        """The sections of the last run."""
        return dict(self._last.sections)

    def save_report(self, path: str | Path) -> list[Path]:
        """Writes path.md, path.html and, last, path.json; which these are."""
        target, sections = Path(path), self._last.sections
        rendered = {target.with_name(f"{target.name}.{name}"): render(sections, name) for name in ordered(DEFAULT)}
        store.make_directory(target.parent)
        for file, data in rendered.items():
            store.atomic_write(file, data)
        return list(rendered)

    @property
    def _last(self) -> Report:
        if self.report is None:
            raise InputError("there is no report yet; call run_full_diagnosis() first")
        return self.report
