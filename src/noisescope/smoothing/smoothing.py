"""smooth(): SmoothQuant scaling, chosen group by group and folded into the weights.

>>> found = smooth(model, tokenizer=tokenizer)                   # doctest: +SKIP
>>> found.save("smoothed", tokenizer=tokenizer)                  # doctest: +SKIP
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..diagnosis import Progress
from ..diagnosis.accepting import accept, data_for
from ..diagnosis.progress import silent
from ..errors import CompiledModel, InputError, ModelError, NothingMatched
from ..measure.batches import EvaluationSet
from ..noise.formats import Format, parse_format
from ..quantising import refuse_quantised
from ..sites import Layout
from ..specs import OPTIONS, checked
from ..specs.checks import number, optional, truth
from .calibrating import Inputs, calibrate
from .finding import Skipped, find_groups
from .groups import Group
from .lending import Fold, fold, lent, rounded_by
from .logits import LogitChange, change, logits_of
from .replaying import block_calls
from .scaling import ALPHAS, Choice, Formats, choose, outlier_ratio
from .smoothed import GroupRow, Smoothed

__all__ = ["smooth"]

DEFAULT_BUDGET = 2**29
"""bytes of the tokens that are kept to measure errors on"""
PROBE_ROWS, PROBE_TOKENS = 4, 32
"""of the text that folds are proved on"""
SINGLE_TOKENS = 64
"""that channels are told apart on"""
_CHECKS = {"calibration_samples": OPTIONS["n_samples"], "powers_of_two": optional(truth)}


@torch.inference_mode(False)
def smooth(
    model: nn.Module,
    data: object = None,
    *,
    tokenizer: Any = None,
    alpha: float | None = None,
    weights: str = "int8",
    activations: str = "int8",
    powers_of_two: bool | None = None,
    calibration_samples: int = 50,
    batch_size: int = 16,
    max_length: int | None = None,
    seed: int = 0,
    blocks: str | None = None,
    name: str | None = None,
    inplace: bool = False,
    budget_bytes: int = DEFAULT_BUDGET,
    progress: Progress = silent,
) -> Smoothed:
    """The same function with smaller outliers: SmoothQuant scaling, folded into the norms and linears of a copy.

    Channel j of what a norm or linear gives is divided by `s_j = max|x_j|^alpha / max|w_j|^(1 - alpha)`, and the
    weights that it meets are multiplied by it. Where that can be done is found by watching the model run, and proved
    block by block; what cannot be folded without changing the function is left alone, and listed with the reason. Use
    it before a model is quantised to 8-bit weights and activations; where activations stay in 16 bit it is of no use.

    Args:
        model: a Hugging Face causal language model in eval mode, not quantised yet. It is left bit-identical.
        data: what to calibrate on; None is a built-in English text. Anything that `open_data` takes.
        tokenizer: needed where data is text.
        alpha: 0 to 1, for all groups; None chooses for each group the one that makes the error of its outputs smallest,
            or none where none helps.
        weights: the format that the weights will be in; the default has one scale for each output channel.
        activations: that of the activations; the default has one scale for each token, as engines compute it while they
            run. "int8:tensor" is one for all tokens, fixed on the calibration data.
        powers_of_two: round every s_j to one, so that nothing is rounded when it is folded, and the function stays the
            same bit for bit; it costs a little of the gain. None: where weights have 16 bits, which rounding shows in.
        calibration_samples: samples of the data.
        batch_size: rows that run together.
        max_length: tokens of a row.
        seed: of the samples, and of the tokens that errors are measured on.
        blocks: where the blocks are, for a model whose structure is not recognised.
        name: what the result calls the model.
        inplace: change the model itself, at the very end: whatever is raised before leaves it bit-identical. Otherwise
            there are two of it in memory until one is let go.
        budget_bytes: for the tokens that errors are measured on, at most 512.
        progress: told how far the run is.

    Returns:
        What was done: print it, take its `model`, or `save` it as an ordinary model.
    """
    alphas = _alphas(alpha)
    checked({"calibration_samples": calibration_samples, "powers_of_two": powers_of_two}, _CHECKS)
    formats = Formats(_format("weights", weights), _format("activations", activations))
    accept(model)
    refuse_quantised(model)
    _refuse_unreachable(model)
    calibration = data_for(
        model,
        data,
        tokenizer,
        n_samples=calibration_samples,
        batch_size=batch_size,
        max_length=max_length,
        seed=seed,
    )
    exact = _dtype(model).itemsize <= 2 if powers_of_two is None else powers_of_two
    own = model if inplace else copy.deepcopy(model)
    layout = Layout.of(own, blocks=blocks)
    logits = logits_of(own, calibration, layout=layout)
    groups, skipped = _found(own, layout, calibration)
    inputs = calibrate(
        own,
        groups,
        calibration,
        blocks=layout.blocks,
        seed=seed,
        budget_bytes=budget_bytes,
        on_batch=progress("calibration", len(calibration.batches)),
    )
    rows, folds, tick = [], [], progress("smoothing", len(groups))
    for group, given in zip(groups, inputs, strict=True):
        chosen = choose(group, given, formats, alphas=alphas, powers_of_two=exact, forced=alpha is not None)
        rows.append(_row(group, given, chosen, layout))
        if chosen.alpha is not None:
            folds.append(Fold(group, chosen.scales))
        tick()
    moved = _moved(own, layout, calibration, logits, folds)
    _refuse_another_function(moved)
    fold(folds)
    return Smoothed(
        model=own,
        name=name or type(model).__name__,
        groups=tuple(rows),
        skipped=tuple(skipped),
        logits=moved,
        weights=str(formats.weights),
        activations=str(formats.activations),
        asked_alpha=alpha,
        powers_of_two=exact,
        data=calibration.name,
        rows=calibration.rows,
        tokens=calibration.tokens,
        seed=seed,
    )


def _alphas(given: float | None) -> Sequence[float]:
    found = checked({"alpha": given}, {"alpha": optional(number(least=0, most=1))})["alpha"]
    return ALPHAS if found is None else (found,)


def _format(what: str, text: str) -> Format:
    try:
        found = parse_format(text)
    except InputError as error:
        raise InputError(*(f"{what}: {problem}" for problem in error.problems)) from None
    if found.rounding != "nearest":
        raise InputError(f"{what}: {found} rounds at random, expected a format that rounds to the nearest")
    return found


def _refuse_unreachable(model: nn.Module) -> None:
    """Raises for compiled code, which cannot be watched, and for weights that are elsewhere."""
    for module in model.modules():
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise CompiledModel(
                f"{type(model).__name__} is compiled, and cannot be watched; smooth the model as it was"
            )
    for path, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ModelError(f"{path}: is not in memory; load the model on one device that holds it")


def _found(model: nn.Module, layout: Layout, data: EvaluationSet) -> tuple[list[Group], list[Skipped]]:
    """The groups of the model, proved on the first rows of the data."""
    rows = data.batches[0]
    length = min(PROBE_TOKENS, int(rows.attention_mask.sum(1)[:PROBE_ROWS].min()))
    some = rows.input_ids[:PROBE_ROWS, :length]
    single = torch.cat([batch.input_ids[batch.attention_mask.bool()] for batch in data]).unique()[:SINGLE_TOKENS]
    groups, skipped = find_groups(
        layout, block_calls(model, layout, some), block_calls(model, layout, single.unsqueeze(1))
    )
    if not groups:
        reason = f": {skipped[0].reason}" if skipped else ""
        raise NothingMatched(f"{type(model).__name__}: nothing in it can be smoothed{reason}")
    return groups, skipped


def _row(group: Group, given: Inputs, chosen: Choice, layout: Layout) -> GroupRow:
    return GroupRow(
        layer=group.layer,
        name=group.name,
        producer=layout.paths[group.producer],
        consumers=tuple(layout.paths[consumer] for consumer in group.consumers),
        alpha=chosen.alpha,
        ratio_before=outlier_ratio(given.largest),
        ratio_after=outlier_ratio(given.largest / group.spread(chosen.scales)),
        error_before=chosen.before,
        error_after=chosen.after,
    )


def _dtype(model: nn.Module) -> torch.dtype:
    """The coarsest dtype of its weights."""
    return max((own.dtype for own in model.parameters()), key=lambda dtype: torch.finfo(dtype).eps)


def _moved(
    model: nn.Module, layout: Layout, data: EvaluationSet, before: list[Tensor], folds: Sequence[Fold]
) -> LogitChange:
    """What the folds do to the logits, while the model still is what it was."""
    with lent(layout.blocks, folds):
        after = logits_of(model, data, layout=layout)
    nudged = None
    if rounded := rounded_by(folds):
        with lent(layout.blocks, folds, nudged=rounded):
            nudged = logits_of(model, data, layout=layout)
    return change(before, after, nudged, dtype=_dtype(model))


def _refuse_another_function(moved: LogitChange) -> None:
    if not moved.is_rounding:
        raise ModelError(
            f"smoothing would move the logits by {moved.largest:.2g}, expected at most {moved.bound:.2g}, what "
            "rounding explains; try powers_of_two=True (--powers-of-two), which rounds nothing, or a wider dtype"
        )
