"""What a diagnosis was asked, down to the bits: two runs with the same question have the same report."""

import platform
from importlib.metadata import version
from typing import Any

import torch

from .. import __version__
from ..keys import fingerprint_config, fingerprint_tokenizer
from ..measure.batches import EvaluationSet
from .stages import Diagnosis

__all__ = ["environment", "question"]


def question(run: Diagnosis, *, tokenizer: Any, max_new_tokens: int) -> dict[str, Any]:
    """Everything that the answer depends on, by name; what explains most of a difference comes first."""
    where, other = environment(run.model), None if run.calibration is run.data else run.calibration
    return {
        **{name: where[name] for name in ("dtype", "device", "attention")},
        "model": run.weights,
        "model's configuration": fingerprint_config(run.model),
        **where,
        "tokenizer": fingerprint_tokenizer(tokenizer),
        "seed": run.spec.seed,
        **_shape(run.data),
        "data": run.data.fingerprint,
        "calibration_samples": other and _shape(other)["n_samples"],
        "calibration data": other and other.fingerprint,
        "max_new_tokens": max_new_tokens,
        "blocks": [run.layout.paths[block] for block in run.layout.blocks],
        **run.spec.as_json(),
    }


def _shape(data: EvaluationSet) -> dict[str, int]:
    """What the flags about data came to: another of these is said before "another data", which it explains."""
    return {
        "n_samples": len({sample for batch in data for sample in batch.samples}),
        "max_length": max(batch.input_ids.shape[1] for batch in data),
        "batch_size": max(batch.rows for batch in data),
    }


def environment(model: Any) -> dict[str, Any]:
    """What the figures may depend on, without host, clock or path."""
    parameter = next(model.parameters())
    return {
        "noisescope": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": version("transformers"),
        "numpy": version("numpy"),
        "system": platform.system(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "device": parameter.device.type,
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "parameters": sum(p.numel() for p in model.parameters()),
        "remote_code": any(_is_remote(part) for part in (model, getattr(model, "config", None))),
    }


def _is_remote(part: object) -> bool:
    """Whether its class came with the model; transformers puts such code into a package of its own."""
    return type(part).__module__.partition(".")[0] == "transformers_modules"
