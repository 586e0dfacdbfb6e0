"""How accuracy is scored where the data has labels; without labels it is that of the next token.

    MultipleChoice   the choice with the largest log-likelihood per character, against the gold one
    ExactMatch       the last number of a generated answer, against the reference

A task holds what scoring needs beside the tokens, and never sees the model.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from .numbers import last_number, same_number

__all__ = ["ExactMatch", "MultipleChoice", "Task"]


@runtime_checkable
class Task(Protocol):
    """What every task offers. Its repr says all that scores depend on: it is part of the set's fingerprint."""

    @property
    def name(self) -> str:
        """For reports."""

    @property
    def chance(self) -> float:
        """The accuracy of guessing."""

    @property
    def samples(self) -> int:
        """How many are scored."""

    @property
    def generates(self) -> bool:
        """True if the model must write an answer first (`generate_correct`); else log-likelihoods of rows suffice."""


@dataclass(frozen=True)
class MultipleChoice:
    """Each sample's rows are its choices, in order; `predicted` are the tokens of the choice.

    >>> task = MultipleChoice(gold=(1, 0), characters=((3, 9), (4, 4)))
    >>> task.correct([-2.0, -3.0, -1.0, -5.0])
    array([1, 1])
    >>> task.correct([-2.0, -3.0, -1.0, -5.0], normalised=False)
    array([0, 1])
    """

    gold: tuple[int, ...]
    """the right choice of each sample, from 0"""
    characters: tuple[tuple[int, ...], ...]
    """the length of each choice of each sample"""

    name = "multiple choice"
    generates = False

    @property
    def samples(self) -> int:
        """How many are scored."""
        return len(self.gold)

    @property
    def chance(self) -> float:
        """The mean of 1 / number of choices."""
        return float(np.mean([1 / len(lengths) for lengths in self.characters]))

    def correct(self, log_likelihood: ArrayLike, *, normalised: bool = True) -> NDArray[np.int64]:
        """1 for each sample whose gold choice is the likeliest, else 0.

        `log_likelihood` has one summed value per row, in the order of the rows over all batches. Each is divided by the
        characters of its choice, so that short choices are not preferred (`acc_norm` of lm-evaluation-harness), or is
        taken as it is (`acc`). Of equals the first counts; a gold choice that is not finite is wrong.
        """
        values = np.asarray(log_likelihood, dtype=np.float64)
        ends = np.cumsum([len(lengths) for lengths in self.characters])
        if values.shape != (ends[-1],):
            raise InputError(
                f"log_likelihood: got shape {values.shape}, expected one value for each of {ends[-1]} rows"
            )
        if normalised:
            values = values / np.concatenate([np.asarray(lengths) for lengths in self.characters])
        own = np.split(np.where(np.isnan(values), -np.inf, values), ends[:-1])
        right = [np.isfinite(v[gold]) and int(v.argmax()) == gold for v, gold in zip(own, self.gold, strict=True)]
        return np.asarray(right, dtype=np.int64)


@dataclass(frozen=True)
class ExactMatch:
    """The model writes an answer, whose last number must be the reference; see `generate_correct`.

    The rows of the set are prompt and reference answer, with the answer's tokens `predicted`: for KL, which needs no
    generation.
    """

    answers: tuple[Decimal, ...]
    prompts: tuple[tuple[int, ...], ...] = field(repr=False)
    """token ids that the answer is generated from"""

    name = "numeric exact match"
    chance = 0.0
    generates = True

    @property
    def samples(self) -> int:
        """How many are scored."""
        return len(self.answers)

    def correct(self, texts: list[str]) -> NDArray[np.int64]:
        """1 for each text whose last number is the reference up to 0.01, else 0."""
        right = [same_number(last_number(text), answer) for text, answer in zip(texts, self.answers, strict=True)]
        return np.asarray(right, dtype=np.int64)
