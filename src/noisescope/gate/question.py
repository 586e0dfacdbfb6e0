"""What was measured, by name: two evaluations can be compared if all of it is the same.

Weights are not in it, they are what is compared; nor are dtype, attention, device and versions, which a person may want
to compare and is told of.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from torch import nn

from ..diagnosis import Diagnosis
from ..diagnosis.by_operator import operator_points
from ..diagnosis.question import environment
from ..errors import InputError
from ..keys import fingerprint_tokenizer
from ..store.encoding import encode_line

__all__ = ["ASKED", "ENVIRONMENT", "question", "refuse_other", "surroundings", "told_differences"]

ASKED = ("error_type", "noise_scale", "seed", "layers", "operators")
"""what of it is asked for, and not found"""
ENVIRONMENT = ("dtype", "device", "attention", "torch", "transformers", "noisescope")
_FIXES = {
    "tokenizer": "give the baseline's with --tokenizer",
    "n_samples": "the data has changed, or pass as many with --n-samples",
    "max_length": "pass it with --max-length",
    "batch_size": "pass it with --batch-size",
    "data": "pass the text that the baseline was made on with --data",
}
_OF_THE_MODEL = ("architecture", "layers in all", "shapes", "places")


def question(run: Diagnosis, tokenizer: Any) -> dict[str, Any]:
    """Everything that two evaluations must share; what explains most of a difference comes first."""
    spec, data = run.spec.as_json(), run.data
    points = operator_points(run.cells, run.noise, seed=0, trials=1)
    return {
        **{name: spec[name] for name in ASKED},
        "architecture": type(run.model).__name__,
        "layers in all": len(run.layout.blocks),
        "shapes": _shapes(run.model),
        "places": list(points),
        "tokenizer": fingerprint_tokenizer(tokenizer),
        "n_samples": len({sample for batch in data for sample in batch.samples}),
        "max_length": max(batch.input_ids.shape[1] for batch in data),
        "batch_size": max(batch.rows for batch in data),
        "data": data.fingerprint,
    }


def surroundings(model: nn.Module) -> dict[str, Any]:
    """Where it was measured."""
    found = environment(model)
    return {name: found[name] for name in ENVIRONMENT}


def refuse_other(before: Mapping[str, Any], now: Mapping[str, Any], *, what: str) -> None:
    """Raises for the first thing that is not as in the baseline."""
    for name in now:
        old, new = before.get(name), now[name]
        if name == "tokenizer" and None in (
            old,
            new,
        ):  # tokens came without one: `data` tells whether they are the same
            continue
        if encode_line(old) != encode_line(new):
            fix = _FIXES.get(name, "make the baseline anew for this model" if name in _OF_THE_MODEL else "ask the same")
            raise InputError(f"{what}: made with another {name} ({_short(old)}, now {_short(new)}); {fix}")


def told_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What is not the same and may be compared all the same."""
    for name in ENVIRONMENT:
        if before.get(name) != now.get(name):
            yield f"{name} ({before.get(name)} -> {now.get(name)})"


def _shapes(model: nn.Module) -> str:
    """16 hexadecimal digits of the names and shapes of all parameters."""
    text = repr([(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()])
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _short(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else encode_line(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
