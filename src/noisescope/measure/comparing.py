"""Clean against noisy on the same samples: KL, flips, accuracy and its degradation, each with a paired interval.

    degradation = (clean accuracy - noisy accuracy) / clean accuracy

Intervals are those of `intervals.ratio` over samples. Where the clean model does no better than chance, within two
standard errors, its degradation says nothing: `conclusive` is False, and the KL ranks instead.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, nan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .intervals import Estimate, ratio

if TYPE_CHECKING:
    from .batches import EvaluationSet
    from .scoring import RowScores

__all__ = ["Comparison", "Outcome"]

Sums = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a model did on each sample, as sums; one element per sample."""

    tokens: Sums
    """predictions that count"""
    kl_nats: Sums
    """KL of the clean output from this one"""
    flips: Sums
    """predictions whose first choice changed"""
    nll_nats: Sums
    correct: Sums
    """right answers"""
    asked: Sums
    """questions: tokens to predict, or 1 for a labelled sample"""
    chance: float
    """the accuracy of guessing"""

    def __post_init__(self) -> None:
        lengths = {len(part) for part in self._sums()}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"expected as many sums of each kind, not {sorted(lengths)}")

    @classmethod
    def of(cls, rows: "RowScores", data: "EvaluationSet", correct: Sums | None = None) -> "Outcome":
        """The outcome from the rows' scores; `correct` has the samples' right answers, where they were generated."""
        sample = np.array([sample for batch in data for sample in batch.samples])

        def by_sample(found: NDArray[Any]) -> Sums:
            return np.bincount(sample, found).astype(np.float64)

        tokens, task = by_sample(rows.tokens), data.task
        if correct is None:
            correct = by_sample(rows.correct) if task is None else task.correct(-rows.nll_nats)
        return cls(
            tokens=tokens,
            kl_nats=by_sample(rows.kl_nats),
            flips=by_sample(rows.flips),
            nll_nats=by_sample(rows.nll_nats),
            correct=correct,
            asked=tokens if task is None else np.ones_like(tokens),
            chance=data.chance,
        )

    def __add__(self, other: "Outcome") -> "Outcome":
        return self._with(a + b for a, b in zip(self._sums(), other._sums(), strict=True))

    def repeated(self, times: int) -> "Outcome":
        """The same outcome, as often as the noisy one was drawn."""
        return self._with(part * times for part in self._sums())

    def same_as(self, other: "Outcome") -> bool:
        """Whether both are the same, bit for bit."""
        return all(a.tobytes() == b.tobytes() for a, b in zip(self._sums(), other._sums(), strict=True))

    def _with(self, sums: Iterable[Sums]) -> "Outcome":
        tokens, kl_nats, flips, nll_nats, correct, asked = sums
        return Outcome(tokens, kl_nats, flips, nll_nats, correct, asked, self.chance)

    def _sums(self) -> tuple[Sums, ...]:
        return self.tokens, self.kl_nats, self.flips, self.nll_nats, self.correct, self.asked

    @property
    def accuracy(self) -> Estimate:
        """Share of right answers."""
        return ratio(self.correct, self.asked)

    @property
    def conclusive(self) -> bool:
        """Whether this is better than chance by more than two standard errors."""
        return self.accuracy.value > self.chance + 2 * self.accuracy.stderr

    @property
    def perplexity(self) -> Estimate:
        """exp of the mean negative log-likelihood of the text; the interval is that of the mean, exponentiated."""
        mean = ratio(self.nll_nats, self.tokens)
        value, low, high = (inf if part > 709 else exp(part) for part in (mean.value, mean.low, mean.high))
        return Estimate(value, low, high, value * mean.stderr, mean.n)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The same samples, clean and noisy."""

    clean: Outcome
    noisy: Outcome

    @cached_property
    def kl(self) -> Estimate:
        """Nats per predicted token."""
        return ratio(self.noisy.kl_nats, self.noisy.tokens, positive=True)

    def kl_above(self, other: "Comparison") -> Estimate:
        """By how much the KL is above that of another run on the same samples, paired; nats per predicted token."""
        return ratio(self.noisy.kl_nats - other.noisy.kl_nats, self.noisy.tokens)

    @cached_property
    def flip_rate(self) -> Estimate:
        """Share of predictions whose first choice changed."""
        return ratio(self.noisy.flips, self.noisy.tokens)

    @cached_property
    def degradation(self) -> Estimate:
        """Relative loss of accuracy, paired by sample; negative where noise helped."""
        if not self.clean.correct.sum():
            return Estimate(nan, nan, nan, nan, len(self.clean.correct))
        return ratio(self.clean.correct - self.noisy.correct, self.clean.correct)

    @cached_property
    def conclusive(self) -> bool:
        """Whether the clean model is better than chance by more than two standard errors."""
        return self.clean.conclusive
