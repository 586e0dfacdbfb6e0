"""Noise in a training loop, step by step. `NoiseCallback` does this for a Trainer; here it is for a loop of your own.

    training = NoisyTraining(model, OperatorNoise(0.05), total=1000)
    for step, batch in enumerate(batches):
        with training.step(step):                   # forward and backward in here, nothing else
            model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(training.history[-1])

Outside the blocks the model has no noise in it, whatever happened inside: evaluate, save and stop wherever you like.
Noise is a pure function of the step's number, so a loop that is resumed with the next number does what a straight one
does.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from torch import nn

from ..errors import InputError, quoted
from ..specs import check_scale
from .gradient_ratio import GradientRatio
from .ledger import Applied
from .operator_noise import OperatorNoise
from .schedules import ConstantSchedule
from .target import Applying, TrainingNoise

__all__ = ["Given", "NoisyTraining", "as_noises"]

Given: TypeAlias = TrainingNoise | float
"""a kind of noise, or the scale of relative noise at every operator"""

log = logging.getLogger("noisescope.training")


@dataclass
class _Part:
    """One of the noises on the model."""

    name: str
    noise: TrainingNoise
    applying: Applying
    is_seen: bool = False
    """True once it was seen to disturb something"""
    has_vanished: bool = False
    """True once it was said that rounding swallows it"""


class NoisyTraining:
    """Noise on a model, in the steps of a training loop.

    Args:
        model: what is trained; nothing is attached to it. For a wrapped one (DDP), what is inside.
        noises: `OperatorNoise`, `NormWeightNoise`, or a number: `OperatorNoise` of that scale.
        total: how many steps there will be; schedules that do not change can do without.
        gradient_ratio_every: measure in every so many steps what noise does to the norm of the gradient, with two more
            forward and backward passes; 0: never.
        rank: of this process in a distributed training; ranks draw each on their own.
    """

    def __init__(
        self,
        model: nn.Module,
        *noises: Given,
        total: int | None = None,
        gradient_ratio_every: int = 0,
        rank: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model: got {type(model).__name__}, expected a torch module")
        self.model = model
        asked = as_noises(noises)
        self._total = _checked_total(total, asked)
        self._parts = [
            _Part(name, noise, noise.on(model, rank=rank)) for name, noise in zip(_names(asked), asked, strict=True)
        ]
        self._ratio = GradientRatio(model, asked, every=gradient_ratio_every, rank=rank)
        self._rank = rank
        self._evaluating: list[Applying] = []
        self._checked: nn.Module | None = None
        self._now: dict[str, float] = {}

    @contextmanager
    def step(self, step: int, *, at: int | None = None, called: nn.Module | None = None) -> Iterator[None]:
        """The noise of one step: forward and backward pass go inside, the optimizer's step behind it.

        Several blocks of one number are parts of one step, as when gradients are accumulated.

        Args:
            step: the number of optimizer steps before this one.
            at: where the schedule is, if it does not count steps but, say, epochs; `total` is then in the same unit.
            called: what is called, if it is a wrapper around the model.
        """
        _check_step(step)
        called = self.model if called is None else called
        self._check(called)
        scales = self.scales(step if at is None else at)
        applying = [part.applying for part in self._parts]
        with self._ratio.watching(step, scales, called), self._noisy(applying, step, scales, trial=step):
            yield
        self._now = scales
        for part in self._parts:
            if scales[part.name] > 0 and not part.is_seen:
                part.applying.refuse_silence()
                part.is_seen = True

    @contextmanager
    def evaluation(self, step: int, *, at: int | None = None) -> Iterator[None]:
        """The noise of an evaluation after so many steps, for those who want to evaluate with it.

        It draws and counts on its own: the training goes on as if there had been none, and `history` is of its steps.
        """
        _check_step(step)
        if not self._evaluating:
            self._evaluating = [part.noise.on(self.model, rank=self._rank) for part in self._parts]
        with self._noisy(self._evaluating, step, self.scales(step if at is None else at), trial=-1 - step):
            yield

    def scales(self, at: int) -> dict[str, float]:
        """The base scale of each noise, where the schedule is at."""
        total = self._total if self._total is not None else at + 1
        return {
            part.name: check_scale(part.noise.scheduled.at(at, total), what=f"{part.name}: its schedule")
            for part in self._parts
        }

    @property
    def history(self) -> list[Applied]:
        """What was really applied, a line for each run of steps at one scale; the newest ten thousand of each noise."""
        return [line for part in self._parts for line in part.applying.ledger.lines]

    def logs(self) -> dict[str, float]:
        """What a training log should say now: `noise_scale`, `noise_dose`, and `gradient_ratio` if it is measured.

        Scale and dose are those of the last steps; noise in norm weights has names of its own, `norm_noise_...`.
        """
        found = {}
        for part in self._parts:
            found[f"{part.name}_scale"] = self._now.get(part.name, 0.0)
            lines = part.applying.ledger.read()
            self._say_if_vanished(part, lines)
            is_on = lines and found[f"{part.name}_scale"] > 0
            found[f"{part.name}_dose"] = lines[-1].dose if is_on else 0.0
        return found | self._ratio.read()

    @contextmanager
    def _noisy(self, applying: list[Applying], step: int, scales: dict[str, float], *, trial: int) -> Iterator[None]:
        with ExitStack() as opened:
            for part, one in zip(self._parts, applying, strict=True):
                opened.enter_context(one.noisy(step, scales[part.name], trial=trial))
            yield

    def _check(self, called: nn.Module) -> None:
        if called is not self._checked:
            for part in self._parts:
                part.applying.check(called)
            self._checked = called

    def _say_if_vanished(self, part: _Part, lines: list[Applied]) -> None:
        gone = next((line for line in lines if line.elements and not line.changed), None)
        if gone is not None and not part.has_vanished:
            part.has_vanished = True
            log.warning(
                "%s of scale %g changed nothing in steps %d to %d: it is below the rounding of the model's dtype",
                part.name.replace("_", " "),
                gone.scale,
                gone.first,
                gone.last,
            )


def as_noises(given: tuple[Given, ...]) -> tuple[TrainingNoise, ...]:
    """The noises; a number is the scale of relative noise at every operator."""
    if not given:
        raise InputError("noises: got none, expected OperatorNoise, NormWeightNoise or a scale")
    found: list[TrainingNoise] = []
    for noise in given:
        if isinstance(noise, (int, float)) and not isinstance(noise, bool):
            found.append(OperatorNoise(noise))
        elif isinstance(noise, TrainingNoise) and not isinstance(noise, type):
            found.append(noise)
        else:
            raise InputError(f"noises: got {quoted(noise)}, expected OperatorNoise, NormWeightNoise or a scale")
    return tuple(found)


def _names(noises: tuple[TrainingNoise, ...]) -> list[str]:
    """What each is logged by: its kind, with a number from the second of a kind on."""
    kinds = [noise.kind for noise in noises]
    counts = [kinds[: place + 1].count(kind) for place, kind in enumerate(kinds)]
    return [kind if count == 1 else f"{kind}_{count}" for kind, count in zip(kinds, counts, strict=True)]


def _checked_total(total: int | None, noises: tuple[TrainingNoise, ...]) -> int | None:
    if total is None:
        if all(isinstance(noise.scheduled, ConstantSchedule) for noise in noises):
            return None
        raise InputError("total: got none, expected how many steps there will be: the schedule depends on it")
    if isinstance(total, bool) or not isinstance(total, int) or total < 1:
        raise InputError(f"total: got {quoted(total)}, expected a whole number of at least 1")
    return total


def _check_step(step: int) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise InputError(f"step: got {quoted(step)}, expected the number of steps before this one")
