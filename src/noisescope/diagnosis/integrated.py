"""`diagnose`: where a model is fragile, as one report.

report = noisescope.diagnose(model, texts, tokenizer=tokenizer)
print(report)
report.map.top(10)
report.save("out")
"""

from typing import Any

from torch import nn

from ..errors import InputError, ModelError
from ..measure.generating import window_of
from ..measure.opening import open_data
from ..report import Report
from ..specs import DiagnosisSpec
from .progress import Progress, silent
from .sections import sections
from .stages import Diagnosis

__all__ = ["diagnose"]


def diagnose(
    model: nn.Module,
    data: object = None,
    *,
    spec: DiagnosisSpec | None = None,
    tokenizer: Any = None,
    calibration_data: object = None,
    n_samples: int = 50,
    calibration_samples: int | None = None,
    batch_size: int = 8,
    max_length: int | None = None,
    max_new_tokens: int = 512,
    blocks: str | None = None,
    name: str | None = None,
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
        progress: told how far the run is.

    Returns:
        The report: print it, read `report.map.top(10)`, or `report.save("out")`.
    """
    spec = spec or DiagnosisSpec()
    _refuse(model)

    def opened(source: object, samples: int) -> Any:
        return open_data(
            source,
            tokenizer,
            n_samples=samples,
            batch_size=batch_size,
            max_length=max_length,
            seed=spec.seed,
            model_window=window_of(model),
        )

    evaluation = opened(data, n_samples)
    calibration = evaluation
    if calibration_data is not None or calibration_samples not in (None, n_samples):
        source = data if calibration_data is None else calibration_data
        calibration = opened(source, calibration_samples or n_samples)
    diagnosis = Diagnosis(
        model,
        evaluation,
        spec,
        calibration=calibration,
        tokenizer=tokenizer,
        max_new_tokens=max_new_tokens,
        blocks=blocks,
        progress=progress,
    )
    return Report(sections(diagnosis, name=name or type(model).__name__))


def _refuse(model: nn.Module) -> None:
    """Raises for what has no next token, or would not give the same one twice."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: got {type(model).__name__}, expected a torch module")
    config = getattr(model, "config", None)
    writes = getattr(model, "can_generate", None)
    if getattr(config, "is_encoder_decoder", False) or (callable(writes) and not writes()):
        raise ModelError(
            f"{type(model).__name__}: diagnose needs a causal language model, one that predicts next tokens"
        )
    if model.training:
        raise InputError("model: it is in training mode, where dropout adds noise of its own; call model.eval() first")
