"""Runs the cases of a manifest on the model that it names: what the generated `test_faults.py` calls.

The model has to be the one of the report: weights that differ are refused. It is left bit-identical.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from ..diagnosis.accepting import accept, data_for
from ..errors import InputError, unknown_name
from ..keys import fingerprint_model
from ..measure.intervals import ratio
from ..models import LoadedModel, load
from .fault_cases import CORRUPTION, FLIPS, OUTAGE, FaultCase
from .fault_corruption import run_corruption
from .fault_flips import run_flips
from .fault_judging import FaultResult
from .fault_outage import run_outage
from .fault_rows import Rows
from .fault_tests import FaultTests
from .places import as_called_from

__all__ = ["FaultRunner"]

_RUN: Mapping[str, Callable[[FaultCase, Rows], FaultResult]] = {
    FLIPS: run_flips,
    OUTAGE: run_outage,
    CORRUPTION: run_corruption,
}
"""type of a test -> what runs it"""


class FaultRunner:
    """Runs tests one by one. The model is loaded when the first of them needs it.

    runner = FaultRunner.load("fault_tests.json")
    runner.run("operator-1").sentence
    """

    def __init__(self, tests: FaultTests, *, home: str | Path = ".") -> None:
        self.tests, self._home = tests, Path(home)
        self._cases = {case.test_id: case for case in tests.cases}

    @classmethod
    def load(cls, manifest: str | Path) -> "FaultRunner":
        """A runner for a manifest; paths in it are relative to where it is."""
        return cls(FaultTests.load(manifest), home=Path(manifest).parent)

    @property
    def test_ids(self) -> list[str]:
        """What can be run, in order."""
        return list(self._cases)

    def run(self, test_id: str) -> FaultResult:
        """What a test gave: `passed`, `sentence`, and what was measured."""
        if test_id not in self._cases:
            raise unknown_name("test", test_id, self._cases)
        case = self._cases[test_id]
        return _RUN[case.test_type](case, self._rows)

    @cached_property
    def _rows(self) -> Rows:
        loaded, asked = self._loaded, self.tests.sections["data"]
        data = data_for(
            loaded.model,
            self._from_home(asked["load"]),
            loaded.tokenizer,
            n_samples=asked["rows"],
            batch_size=asked["rows"],
            max_length=asked["longest_row"],
            seed=asked["seed"],
        )
        if data.task is not None:
            raise InputError(f"{data.name}: has questions, expected text; plan the tests anew with another --data")
        rows = Rows.of(loaded.model, data)
        accuracy = ratio(rows.clean_plainly.correct, rows.clean_plainly.tokens)
        if not accuracy.value > data.chance + 2 * accuracy.stderr:
            raise InputError(
                f"{data.name}: the model's accuracy, {accuracy}, is no better than chance, {data.chance:.3g}; there is "
                "nothing to lose, use data on which it is"
            )
        return rows

    @cached_property
    def _loaded(self) -> LoadedModel:
        asked = self.tests.sections["model"]
        loaded = load(
            self._from_home(asked["load"]),
            dtype=asked["dtype"] or "auto",
            attn=asked["attention"],
            tokenizer=self._from_home(asked.get("tokenizer")),
            trust_remote_code=asked.get("trust_remote_code", False),
        )
        accept(loaded.model)
        weights = fingerprint_model(loaded.model)
        if asked["weights"] is not None and weights != asked["weights"]:
            raise InputError(
                f"model: {loaded.name} has other weights ({weights}) than that of the report ({asked['weights']}); "
                "diagnose it, and plan its own tests"
            )
        return loaded

    def _from_home(self, name: str | None) -> str | None:
        return None if name is None else as_called_from(".", name, there=self._home)
