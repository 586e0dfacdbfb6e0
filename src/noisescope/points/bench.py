"""A model on data, with its clean run kept: where points are measured.

Every forward pass computes attention in steps, also those that disturb nothing in it, so that clean and noisy runs
differ by the noise alone. A trial starts at the first layer it disturbs, from the clean run's stored state there.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from math import inf, log10, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..capturing import non_finite
from ..errors import DoseVanished, InputError, ModelError, NonFinite
from ..injection import Injection, InjectionStats, Scales
from ..measure.batches import Batch, EvaluationSet
from ..measure.comparing import Comparison, Outcome
from ..measure.generating import generate_correct
from ..measure.scoring import RowScores, first_bad_row, score, select
from ..measure.tasks import ExactMatch
from ..noise import RelativeGaussian
from ..resuming import Kept, Recording, Shelf
from ..sites import Layout
from ..specs import Selection
from .point import Finding, Point, Result

__all__ = ["Bench", "Clean"]

DEFAULT_BUDGET = 2**30
"""bytes of the clean run that stay in memory; the rest is read from disk when it is needed"""

_NOTHING = Point(Selection(layers=()), RelativeGaussian(0.0))


@dataclass(frozen=True, eq=False)
class Clean:
    """What is worth keeping of the clean run."""

    outcome: Outcome
    resumes: bool
    blocks: int
    """rows x blocks that were run for it"""


@dataclass(frozen=True)
class CleanRun:
    """The undisturbed run, batch by batch, and what came out of it."""

    logits: list[Kept]
    """of the predictions that count"""
    recordings: list[Recording]
    outcome: Outcome


class Bench:
    """Measures points. Make one per model and data; it holds no other state than the clean run.

    Results do not depend on which points were run before. `cost` counts forward-pass equivalents: one is a forward
    pass over all of the data; a resumed trial counts the blocks it ran.
    """

    def __init__(
        self,
        model: nn.Module,
        data: EvaluationSet,
        *,
        layout: Layout | None = None,
        blocks: str | None = None,
        tokenizer: Any = None,
        max_new_tokens: int = 512,
        resume: bool = True,
        budget_bytes: int = DEFAULT_BUDGET,
    ) -> None:
        self.model, self.data = model, data
        self.layout = layout or Layout.of(model, blocks=blocks)
        self.layers = len(self.layout.blocks)
        self._tokenizer, self._max_new_tokens = tokenizer, max_new_tokens
        self._wants_resume = resume
        self._shelf = Shelf(budget_bytes)
        self._device = next(model.parameters()).device
        self._ran = 0
        """rows x blocks"""
        self._known: Clean | None = None
        self.on_batch: Callable[[], None] = _nothing
        """called after each batch of the clean run"""

    @property
    def cost(self) -> float:
        """Forward-pass equivalents so far."""
        return self._ran / self.blocks

    @property
    def blocks(self) -> int:
        """Rows x blocks of one forward pass over the data: one equivalent."""
        return self.layers * self.data.rows

    @property
    def clean(self) -> Outcome:
        """What the undisturbed model does."""
        return self._clean.outcome if self._known is None else self._known.outcome

    def know(self, clean: Clean) -> None:
        """Takes over what an earlier run on the same model and data has found; it is run again once it is needed."""
        self._known = clean

    @property
    def recordings(self) -> list[Recording] | None:
        """What the blocks gave in the clean run, batch by batch; None if this model cannot be resumed from it."""
        return self._clean.recordings if self.resumes else None

    @property
    def clean_logits(self) -> list[Kept]:
        """What the undisturbed model gave, batch by batch, as `select` has it; run now if it has not been."""
        return self._clean.logits

    def keep(self) -> Clean:
        """The clean run, run if need be, for `know` of a later bench."""
        outcome, resumes = self.clean, self.resumes
        return self._known or Clean(outcome, resumes, self._ran)

    def run(self, point: Point) -> Result:
        """The result of one point."""
        clean = self._clean.outcome
        start = self._first_layer(point.selection) if self.resumes else 0
        before, seen, trials = self._ran, list[InjectionStats](), 0
        noisy: Outcome | None = None
        draws, failure = list[NDArray[np.float64]](), ""
        try:
            for trial in range(point.trials if point.noise_scale else 1):
                found, trials = self._trial(point, trial, start, seen), trial + 1
                noisy = found if noisy is None else noisy + found
                draws.append(found.kl_nats)
                if point.tolerance and _agree(draws, point.tolerance):
                    break
        except NonFinite as error:
            noisy, failure = None, str(error)
        _refuse_silence(point, seen)
        blocks = self._ran - before
        finding = Finding(
            noisy,
            trials,
            injections=sum(row.calls for stats in seen for row in stats.rows),
            dose=float(np.mean([stats.dose for stats in seen])),
            snr_db=_snr_db(seen),
            blocks=blocks,
            cost=blocks / self.blocks,
            failure=failure,
        )
        return Result(point, clean, finding)

    def compare(self, inside: AbstractContextManager[Any], *, start: int = 0) -> Comparison:
        """Clean against what the model does inside a context manager that changes nothing before layer `start`.

        Raises NonFinite if that makes its output non-finite.
        """
        clean = self._clean
        first = start if self.resumes else 0
        scores = []
        with inside:
            for number, batch in enumerate(self.data):
                with clean.recordings[number].resume(first):
                    logits, _ = self._disturbed(_NOTHING, 0, number, batch, first)
                if first_bad_row(logits, batch) is not None:
                    raise self._non_finite(batch, "in these formats the model")
                scores.append(score(logits, batch, clean.logits[number].get()))
            answers = self._answers(_NOTHING, 0)
        return Comparison(clean.outcome, Outcome.of(RowScores.concatenate(scores), self.data, answers))

    # --- one trial ----------------------------------------------------------------------------------------------

    def _trial(self, point: Point, trial: int, start: int, seen: list[InjectionStats]) -> Outcome:
        scores = []
        for number, batch in enumerate(self.data):
            with self._clean.recordings[number].resume(start):
                logits, stats = self._disturbed(point, trial, number, batch, start)
            seen.append(stats)
            scores.append(score(logits, batch, self._clean.logits[number].get()))
            if first_bad_row(logits, batch) is not None:
                with self._injecting(point, trial, number):
                    raise self._non_finite(batch, "under this noise the model")
        return Outcome.of(RowScores.concatenate(scores), self.data, self._answers(point, trial))

    def _answers(self, point: Point, trial: int) -> NDArray[np.float64] | None:
        """Which samples the model answers rightly, where it has to write the answer."""
        task = self.data.task
        if not isinstance(task, ExactMatch):
            return None
        if self._tokenizer is None:
            raise InputError(f"{self.data.name}: scoring what the model writes needs its tokenizer")
        with self._injecting(point, trial, len(self.data.batches)):
            found = generate_correct(
                self.model,
                task,
                self._tokenizer,
                batch_size=max(batch.rows for batch in self.data),
                max_new_tokens=self._max_new_tokens,
            )
        written = sum(len(ids) for ids in self._tokenizer(found.texts, add_special_tokens=False)["input_ids"])
        tokens = written + sum(map(len, task.prompts))
        self._ran += round(self.layers * self.data.rows * tokens / self.data.tokens)
        return found.correct.astype(np.float64)

    def _disturbed(
        self, point: Point, trial: int, number: int, batch: Batch, start: int
    ) -> tuple[Tensor, InjectionStats]:
        injection = self._injecting(point, trial, number)
        with suppress(DoseVanished), injection:  # rare faults may miss one batch: see `_refuse_silence`
            logits = self._forward(batch, start)
        return logits, injection.stats

    def _injecting(self, point: Point, trial: int, number: int) -> Injection:
        return Injection(
            point.noise,
            point.selection,
            layout=self.layout,
            scales=Scales(point.noise_scale),
            seed=point.seed,
            trial=trial,
            in_steps=True,
            first_step=number,
        )

    def _forward(self, batch: Batch, start: int = 0) -> Tensor:
        self._ran += (self.layers - start) * batch.rows
        with torch.inference_mode(False), torch.no_grad():
            logits: Tensor = self.model(**batch.inputs(self._device)).logits
        return logits

    def _non_finite(self, batch: Batch, who: str) -> NonFinite:
        return non_finite(who, self.model, batch.inputs(self._device), layout=self.layout)

    # --- the clean run ------------------------------------------------------------------------------------------

    @cached_property
    def _clean(self) -> CleanRun:
        logits, recordings, scores = [], [], []
        for number, batch in enumerate(self.data):
            recordings.append(Recording(self.layout, self._shelf))
            with recordings[-1].record():
                found, _ = self._disturbed(_NOTHING, 0, number, batch, 0)
            if first_bad_row(found, batch) is not None:
                raise self._non_finite(batch, "the model")
            scores.append(score(found, batch))
            logits.append(self._shelf.put(select(found, batch)))
            self.on_batch()
        outcome = Outcome.of(RowScores.concatenate(scores), self.data, self._answers(_NOTHING, 0))
        if self._known is not None and not outcome.same_as(self._known.outcome):
            raise ModelError(
                "the model does not compute what it did in the run to go on with; begin anew (--overwrite)"
            )
        return CleanRun(logits, recordings, outcome)

    def _first_layer(self, selection: Selection) -> int:
        """The first block that the selection can touch; the number of blocks if it touches none."""
        if selection.layers is None or "embed" in selection.layers:
            return 0
        return min((layer for layer in selection.layers if isinstance(layer, int)), default=self.layers)

    @cached_property
    def resumes(self) -> bool:
        """Whether trials resume: if asked for, and if one resumed trial was seen to equal the whole one bit for bit."""
        if self._known is not None:
            return self._known.resumes
        if not self._wants_resume or self.layers < 2:
            return False
        middle = self.layers // 2
        probe = Point(Selection(layers=tuple(range(middle, self.layers))), RelativeGaussian(0.05))
        batch, recording = self.data.batches[0], self._clean.recordings[0]
        whole, _ = self._disturbed(probe, 0, 0, batch, 0)
        try:
            with recording.resume(middle):
                resumed, _ = self._disturbed(probe, 0, 0, batch, middle)
        except ModelError:
            return False
        return torch.equal(whole, resumed)


def _nothing() -> None:
    """Who listens to nobody."""


def _agree(draws: list[NDArray[np.float64]], tolerance: float) -> bool:
    """Whether the 95% interval that so few draws leave, on these samples, is within that share of the KL."""
    if len(draws) < 2:
        return False
    kl = np.stack(draws)
    total, variance = kl.mean(axis=0).sum(), kl.var(axis=0, ddof=1).sum() / len(draws)
    return bool(total > 0 and 1.96 * sqrt(variance) <= tolerance * total)  # as samples are disturbed independently


def _refuse_silence(point: Point, seen: list[InjectionStats]) -> None:
    """Raises if noise was asked for and nothing changed in all of the data."""
    if point.noise_scale > 0 and not point.selection.empty and not any(stats.total.changed for stats in seen):
        looked_at = sum(stats.total.elements for stats in seen)
        raise DoseVanished(
            f"{point.selection.describe()}: {point.noise.name} at scale {point.noise_scale:g} changed none of "
            f"{looked_at} values; use a larger scale, more data or a wider dtype"
        )


def _snr_db(seen: list[InjectionStats]) -> float:
    """Signal to noise as it was, over all that was disturbed."""
    parts = [stats.total for stats in seen]
    value, error = sum(part.abs_value for part in parts), sum(part.abs_error for part in parts)
    return 20 * log10(value / error) if value > 0 and error > 0 else inf
