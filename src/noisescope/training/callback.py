"""NoiseCallback: noise in a Hugging Face Trainer, and so in TRL's.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[NoiseCallback(OperatorNoise(0.05, phases="both"))])
    trainer.train()

Logged with the loss, to wherever the Trainer logs: `noise_scale`, `noise_dose`, and `gradient_ratio` if asked for.
"""

import sys
from collections.abc import Callable
from math import ceil
from typing import Any, Literal

from torch import nn
from transformers import TrainerCallback

from ..errors import InputError, ModelError, unknown_name
from .gradient_ratio import check_every
from .ledger import Applied
from .norm_noise import NormWeightNoise
from .running import Given, NoisyTraining, as_noises
from .trainers import Shadows, running_trainer

__all__ = ["NoiseCallback"]


class NoiseCallback(TrainerCallback):
    """Puts noise into the forward and backward passes of a training, and into nothing else.

    Evaluation, checkpoints and the optimizer see the clean model; so does whoever catches an exception. What a step
    draws depends on its number alone: a resumed training goes on as the straight one would, and gradient checkpointing
    changes no bit. With scale 0 training is bit for bit that without the callback.

    For a model compiled with `torch_compile` operator noise is refused with the reason; noise in norm weights works.
    In trainers that generate within a step (GRPO) the rollouts have the noise too.

    Args:
        noises: `OperatorNoise`, `NormWeightNoise`, or a number: `OperatorNoise` of that scale.
        by: what schedules count, `step` (optimizer steps) or `epoch`.
        in_evaluation: evaluations during the training have the noise of where it is, with draws of their own.
        gradient_ratio_every: measure in every so many steps norm(noisy gradient) / norm(clean gradient), with two more
            forward and backward passes; 0: never.

    Example:
        >>> from noisescope import ExponentialStages, NoiseCallback, NormWeightNoise
        >>> callback = NoiseCallback(NormWeightNoise(ExponentialStages(1e-2, 1e-4, stages=10)))
    """

    def __init__(
        self,
        *noises: Given,
        by: Literal["step", "epoch"] = "step",
        in_evaluation: bool = False,
        gradient_ratio_every: int = 0,
    ) -> None:
        if by not in ("step", "epoch"):
            raise unknown_name("unit of a schedule", by, ("step", "epoch"))
        self.noises = as_noises(noises)
        self.by = by
        self.in_evaluation = in_evaluation
        self.gradient_ratio_every = check_every(gradient_ratio_every)
        self.training: NoisyTraining | None = None
        """the noise on the model, once training has begun"""
        self._trainer: Any = None
        self._shadows: Shadows | None = None
        self._is_noisy = False
        """True once the step under way has computed with noise"""

    @property
    def history(self) -> list[Applied]:
        """What was really applied, a line for each run of steps at one scale, with the dose of every layer."""
        return [] if self.training is None else self.training.history

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **_: Any) -> None:
        """Called by the Trainer, before the first step."""
        self._enter(args, state, model)

    def on_step_begin(self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **_: Any) -> None:
        """Called by the Trainer; a callback that was added to a training under way begins here."""
        if self._shadows is None or not self._shadows.are_on:
            self._enter(args, state, model)
        self._is_noisy = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the Trainer, after the optimizer's step."""
        if self._shadows is not None and self._shadows.are_on and not self._is_noisy:
            raise InputError(
                f"NoiseCallback: {type(self._trainer).__name__} has made a step without its training_step, where "
                "the noise is; use NoisyTraining in the code that makes the step"
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the Trainer, after the last step."""
        self._leave()

    def _enter(self, args: Any, state: Any, model: nn.Module | None) -> None:
        trainer, loop = running_trainer(self)
        self._refuse(trainer)
        self._leave()
        if model is None:
            raise InputError("NoiseCallback: the Trainer gives no model")
        self.training = NoisyTraining(
            model,
            *self.noises,
            total=state.max_steps if self.by == "step" else _epochs(state.num_train_epochs),
            gradient_ratio_every=self.gradient_ratio_every,
            rank=args.process_index,
        )
        self._trainer = trainer
        methods: dict[str, Callable[..., Any]] = {"training_step": self._training_step, "log": self._log}
        if self.in_evaluation:
            methods["evaluation_loop"] = self._evaluation_loop
        self._shadows = Shadows(trainer, loop, self, methods)

    def _refuse(self, trainer: Any) -> None:
        """Raises where noise would be nowhere, or where it should not be."""
        if self._shadows is not None and self._shadows.are_on and self._trainer is not trainer:
            raise InputError(
                "NoiseCallback: is at work in a training around this one; give each of the two Trainers its own"
            )
        if sum(isinstance(one, NoiseCallback) for one in trainer.callback_handler.callbacks) > 1:
            raise InputError(
                "NoiseCallback: is in this Trainer twice; give one of them all the noises, NoiseCallback(first, second)"
            )
        in_norms = any(isinstance(noise, NormWeightNoise) for noise in self.noises)
        if in_norms and getattr(trainer, "is_deepspeed_enabled", False):
            raise ModelError(
                "NormWeightNoise: with DeepSpeed a Trainer moves the weights inside the step, where noise is in them; "
                "use OperatorNoise, or train without DeepSpeed"
            )

    def _leave(self) -> None:
        if self._shadows is not None:
            self._shadows.take_back()
        self._shadows = self._trainer = None

    @property
    def _at(self) -> int:
        """Where the schedule is."""
        state = self._trainer.state
        return int(state.global_step if self.by == "step" else state.epoch or 0)

    def _training_step(self, original: Callable[..., Any], model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        assert self.training is not None
        self._is_noisy = True
        with self.training.step(self._trainer.state.global_step, at=self._at, called=model):
            return original(model, *args, **kwargs)

    def _evaluation_loop(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        assert self.training is not None
        with self.training.evaluation(self._trainer.state.global_step, at=self._at):
            return original(*args, **kwargs)

    def _log(self, original: Callable[..., Any], logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
        assert self.training is not None
        return original({**logs, **self.training.logs()} if "loss" in logs else logs, *args, **kwargs)


def _epochs(expected: float) -> int:
    """How many there will be; a Trainer that does not know expects the largest number there is."""
    if expected >= sys.maxsize:
        raise InputError('by: got "epoch", expected "step" for data whose length is not known: it is all one epoch')
    return ceil(expected)
