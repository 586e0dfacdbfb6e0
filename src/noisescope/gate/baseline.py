"""The baseline of a gate: what a checkpoint that was found good gave, by operator and sequence, in a file.

    {"schema": "noisescope baseline", "version": 1, "digest": "5c1e...", "model": "step-1000",
     "question": {...}, "environment": {...}, "evaluation": {"asked": [31, ...], "clean": [12, ...], ...}}

Strict JSON on one line. The digest is of everything else in it: a file that was cut off, changed or edited is refused.
A report of `diagnose` may stand in for a baseline, for its limits alone: it has no figures by sequence to pair with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import isnan
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from .. import store
from ..errors import InputError, quoted
from ..models.boundary import one_line
from ..report import Report
from ..store.encoding import decode, encode_line
from .evaluating import Counts, Evaluation

__all__ = ["SCHEMA", "VERSION", "Baseline", "Limits", "limits_of", "open_baseline"]

SCHEMA = "noisescope baseline"
VERSION = 1
LARGEST = 256 << 20
"""bytes of a baseline: one of a thousand sequences has forty thousand"""
_USUAL = {"error_type": "relative_gaussian", "noise_scale": 0.05, "seed": 0, "layers": None, "operators": None}
"""what a report was asked, where it does not say"""


@dataclass(frozen=True, eq=False)
class Baseline:
    """What a checkpoint gave. Make one with `take_baseline`, keep it with `save`, read it with `load`."""

    model: str
    """what it is called"""
    question: Mapping[str, Any]
    """tokens, noise and structure: what a checkpoint must share to be compared with it"""
    environment: Mapping[str, Any]
    """where it was measured"""
    evaluation: Evaluation = field(repr=False)

    def to_json(self) -> str:
        """Strict JSON on one line; the same baseline gives the same text."""
        found = self.evaluation
        content = {
            "schema": SCHEMA,
            "version": VERSION,
            "model": self.model,
            "question": dict(self.question),
            "environment": dict(self.environment),
            "evaluation": {
                "asked": found.asked.tolist(),
                "clean": found.clean.tolist(),
                "noisy": {name: counts.tolist() for name, counts in found.noisy.items()},
                "chance": found.chance,
                "cost": found.cost,
            },
        }
        return encode_line({"digest": _digest(content), **content}) + "\n"

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that tell two baselines apart."""
        return str(decode(self.to_json())["digest"])

    def save(self, path: str | Path) -> Path:
        """Writes the file, whole or not at all; one that is there is replaced."""
        file = Path(path)
        store.make_directory(file.parent)
        store.atomic_write(file, self.to_json().encode())
        return file

    @classmethod
    def load(cls, path: str | Path) -> "Baseline":
        """The baseline of a file, if it is whole and of this version."""
        found = open_baseline(path)
        if isinstance(found, Limits):
            raise InputError(
                f"{one_line(path)}: a report of `diagnose`, expected a baseline (`noisescope check --save-baseline`)"
            )
        return found

    def __repr__(self) -> str:
        return f"<Baseline: {self.model}, {len(self.evaluation.asked)} samples, {len(self.evaluation.noisy)} operators>"


@dataclass(frozen=True, eq=False)
class Limits:
    """What a report of `diagnose` gives in place of a baseline: the noise it used, and what operators cost there."""

    model: str
    question: Mapping[str, Any]
    layers: int | None
    """of the model; None if it is not known"""
    degradation: Mapping[str, float]
    highest: float
    """the upper end of the 95% interval of the most fragile operator"""


def open_baseline(path: str | Path) -> Baseline | Limits:
    """A baseline, or the limits of a report, whichever the file or directory holds."""
    file, label = Path(path), one_line(path)
    if file.is_dir():
        return limits_of(Report.load(file).sections, label)
    content = _content(file, label)
    if "schema_version" in content and "schema" not in content:
        return limits_of(Report.load(file).sections, label)
    if content.get("schema") != SCHEMA:
        raise InputError(f"{label}: schema: got {quoted(content.get('schema'))}, expected {quoted(SCHEMA)}")
    if content.get("version") != VERSION or isinstance(content["version"], bool):
        got = quoted(content.get("version"))
        raise InputError(f"{label}: version: got {got}, expected {VERSION}; make the baseline anew with this release")
    if content.pop("digest", None) != _digest(content):
        raise InputError(f"{label}: digest: the content is not what was saved; make the baseline anew")
    try:
        return _baseline(content)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise InputError(f"{label}: not a baseline ({one_line(error)}); make it anew") from None


def _content(file: Path, label: str) -> dict[str, Any]:
    try:
        found = decode(store.read_whole(file, LARGEST).decode("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{label}: no such file; make it with `noisescope check MODEL --save-baseline`") from None
    except OSError as error:
        raise InputError(f"{label}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{label}: not a baseline ({' '.join(str(error).split())})") from None
    if not isinstance(found, dict):
        raise InputError(f"{label}: not a baseline (a {type(found).__name__}, expected an object)")
    return found


def _baseline(content: Mapping[str, Any]) -> Baseline:
    found = content["evaluation"]
    asked, clean = _counts(found["asked"]), _counts(found["clean"])
    noisy = {str(name): _counts(counts) for name, counts in found["noisy"].items()}
    for name, counts in {"clean": clean, **noisy}.items():
        if len(counts) != len(asked) or (counts > asked).any():
            raise ValueError(f"evaluation of {name}: not right predictions of as many sequences")
    if not clean.any():
        raise ValueError("evaluation of clean: no prediction is right, so that there is nothing to lose")
    if missing := {"places", "n_samples", *_USUAL} - set(content["question"]):
        raise ValueError(f"question: no {min(missing)}")
    if content["question"]["n_samples"] != len(asked):
        raise ValueError(f"evaluation: {len(asked)} sequences, the question has {content['question']['n_samples']}")
    if not noisy or list(noisy) != list(content["question"]["places"]):
        raise ValueError("evaluation: other operators than the question has")
    evaluation = Evaluation(asked, clean, noisy, float(found["chance"]), float(found["cost"]))
    return Baseline(str(content["model"]), dict(content["question"]), dict(content["environment"]), evaluation)


def _counts(plain: Sequence[Any]) -> Counts:
    if not isinstance(plain, list) or not plain or any(type(part) is not int or part < 0 for part in plain):
        raise ValueError("expected whole numbers, one for each sequence")
    return np.array(plain, np.int64)


def _digest(content: Mapping[str, Any]) -> str:
    return blake2b(encode_line(content).encode("ascii"), digest_size=8).hexdigest()


def limits_of(found: Mapping[str, Any], label: str) -> Limits:
    """The limits that a report's sections, or its operators alone, give."""
    analysis = found["operator_analysis"]
    if not isinstance(analysis, Mapping):
        raise InputError(f"{label}: operator_analysis: got {quoted(analysis)}, expected operators; {_LIKE}")
    for name, row in analysis.items():
        _refuse_row(row, f"{label}: {one_line(name)}")
    rows = {name: row for name, row in analysis.items() if "degradation" in row}
    if not rows:
        raise InputError(f"{label}: a report without operators; run `noisescope diagnose --level operator`")
    if any(row.get("severity") == "inconclusive" for row in rows.values()):
        raise InputError(f"{label}: a report of a model that is no better than chance: it has nothing to lose")
    config = found.get("config", {})
    if not isinstance(config, Mapping):
        raise InputError(f"{label}: config: got {quoted(config)}, expected what a report has there")
    return Limits(
        model=str(config.get("model", "report")),
        question={name: config.get(name, value) for name, value in _USUAL.items()},
        layers=found.get("coverage", {}).get("layers"),
        degradation={name: row["degradation"] for name, row in rows.items()},
        highest=max(row.get("degradation_interval", (0, row["degradation"]))[1] for row in rows.values()),
    )


_LIKE = "pass a report, or what `operator_level_diagnosis` returns"


def _refuse_row(row: object, label: str) -> None:
    """Raises for what is no operator of a report."""
    if not isinstance(row, Mapping):
        raise InputError(f"{label}: got {quoted(row)}, expected a mapping with its degradation; {_LIKE}")
    value, interval = row.get("degradation", 0.0), row.get("degradation_interval", (0.0, 0.0))
    if not _is_number(value):
        raise InputError(f"{label}: degradation: got {quoted(value)}, expected a number; {_LIKE}")
    if not isinstance(interval, (list, tuple)) or len(interval) != 2 or not all(map(_is_number, interval)):
        raise InputError(f"{label}: degradation_interval: got {quoted(interval)}, expected two numbers; {_LIKE}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not isnan(value)
