"""`diagnose`: where a model is fragile, as one report.

report = noisescope.diagnose(model, texts, tokenizer=tokenizer)
print(report)
report.map.top(10)
report.save("out")
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import InputError
from ..measure.batches import EvaluationSet
from ..models import DEFAULT
from ..report import Report
from ..specs import OPTIONS, DiagnosisSpec, checked
from ..store import Journal
from .accepting import accept, data_for
from .commands import Commands
from .memory import enough_memory
from .progress import Progress, silent
from .question import environment, question
from .sections import sections
from .stages import Diagnosis

__all__ = ["diagnose"]


@torch.inference_mode(False)
def diagnose(
    model: nn.Module,
    data: object = None,
    *,
    spec: DiagnosisSpec | None = None,
    tokenizer: Any = None,
    calibration_data: object = None,
    n_samples: int = 50,
    calibration_samples: int | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    max_new_tokens: int = 512,
    blocks: str | None = None,
    name: str | None = None,
    journal: Journal | None = None,
    save_activations: str | Path | None = None,
    progress: Progress = silent,
) -> Report:
    """Where a model is fragile: operators, layers and channels, from known noise at known places.

    Args:
        model: a Hugging Face causal language model in eval mode. It is left bit-identical.
        data: what to measure on; None is a built-in English text. Anything that `measure.open_data` takes.
        spec: levels, noise, windows, thresholds, trials; see `DiagnosisSpec`.
        tokenizer: needed where data is text.
        calibration_data: what channels are looked at on; None is the same data.
        n_samples: samples of the data.
        calibration_samples: samples that channels are looked at on; None is as many.
        batch_size: rows that run together.
        max_length: tokens of a row.
        max_new_tokens: where answers are generated.
        blocks: where the blocks are, for a model whose structure is not recognised.
        name: what the report calls the model.
        journal: where finished points are kept, so that a run that was interrupted can go on; see `Journal`.
        save_activations: a safetensors file for what every channel did (largest, mean, std, quantiles), one forward
            pass more; the activations themselves would not fit.
        progress: told how far the run is.

    Returns:
        The report: print it, read `report.map.top(10)`, or `report.save("out")`.
    """
    spec = spec or DiagnosisSpec()
    accept(model)

    def opened(source: object, samples: int) -> EvaluationSet:
        return data_for(
            model,
            source,
            tokenizer,
            n_samples=samples,
            batch_size=batch_size,
            max_length=max_length,
            seed=spec.seed,
        )

    evaluation = calibration = opened(data, n_samples)
    samples = n_samples if calibration_samples is None else calibration_samples
    checked({"calibration_samples": samples}, OPTIONS)
    if calibration_data is not None or samples != n_samples:
        if calibration_data is None and isinstance(data, Iterator):
            raise InputError("data: an iterator can be read once, but channels are looked at on more; pass a list")
        calibration = opened(data if calibration_data is None else calibration_data, samples)
    diagnosis = Diagnosis(
        model,
        evaluation,
        spec,
        calibration=calibration,
        tokenizer=tokenizer,
        max_new_tokens=max_new_tokens,
        blocks=blocks,
        journal=journal,
        progress=progress,
    )
    diagnosis.check()
    if journal is not None:
        journal.begin(question(diagnosis, max_new_tokens=max_new_tokens, tokenizer=tokenizer))
    where = environment(model)
    options = {
        "batch_size": batch_size,
        "max_length": max_length,
        "max_new_tokens": max_new_tokens,
        "calibration_data": calibration.name if isinstance(calibration_data, str) else None,
        "calibration_samples": calibration_samples,
        "blocks": blocks,
        "dtype": None if name == DEFAULT.name and where["dtype"] == "float32" else where["dtype"],
        "device": where["device"],
        "attn": None if where["attention"] == "sdpa" else where["attention"],
    }
    commands = Commands.naming(
        name,
        evaluation.name if isinstance(data, str) else None,
        spec=spec,
        n_samples=n_samples,
        options=options,
    )
    with enough_memory(batch_size):
        report = Report(sections(diagnosis, name=name or type(model).__name__, commands=commands))
        if save_activations is not None:
            diagnosis.look_at_channels().save(save_activations)
    return report
