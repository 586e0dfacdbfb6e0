"""What noise does to the gradient: norm(noisy) / norm(clean), on a batch that the training sees.

The first forward call of a step is remembered and run twice more, without and with the noise of that step, from the
same random state. Gradients of the training, its random numbers and the draws of its noise are left as they were.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, quoted
from ..injection import forwards_replaced
from ..keys import streams_kept
from ..measure.metrics import compute_gradient_ratio
from .target import TrainingNoise

__all__ = ["GradientRatio", "check_every"]

log = logging.getLogger("noisescope.training")


class GradientRatio:
    """Measures the ratio in every so many steps."""

    def __init__(self, model: nn.Module, noises: tuple[TrainingNoise, ...], *, every: int, rank: int) -> None:
        self._model, self._every = model, check_every(every)
        # noise of its own: what it books and counts is not the training's
        self._applying = [noise.on(model, rank=rank) for noise in noises] if every else []
        self._last = -1
        self._found: list[float] = []

    @contextmanager
    def watching(self, step: int, scales: dict[str, float], called: nn.Module) -> Iterator[None]:
        """A step of the training, in which `called` is called; afterwards the ratio is measured, if it is its turn."""
        if not self._every or step % self._every or step == self._last or not any(scales.values()):
            yield
            return
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def remember(forward: Any, *args: Any, **kwargs: Any) -> Any:
            if not calls and torch.is_grad_enabled():
                calls.append((args, kwargs))
            return forward(*args, **kwargs)

        # compiled code is watched from outside: inside, the watching would be compiled too
        watched = called if "_orig_mod" in called._modules else self._model
        with forwards_replaced({watched: remember}):
            yield
        self._last = step
        if calls:
            self._measure(step, list(scales.values()), *calls[0])

    def read(self) -> dict[str, float]:
        """`gradient_ratio`, the mean since it was read last; nothing if it was not measured."""
        found, self._found = self._found, []
        return {"gradient_ratio": sum(found) / len(found)} if found else {}

    def _measure(self, step: int, scales: list[float], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            clean = self._gradients(args, kwargs)
            with ExitStack() as opened:
                for applying, scale in zip(self._applying, scales, strict=True):
                    opened.enter_context(applying.noisy(step, scale, trial=step))
                noisy = self._gradients(args, kwargs)
        except _Unmeasured as why:
            log.warning("gradient_ratio: not measured; %s", why)
            self._every = 0
            return
        self._found.append(compute_gradient_ratio(clean, noisy))

    def _gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Tensor]:
        """Parameter -> gradient of the loss; the training's own are not touched."""
        trained = {name: weight for name, weight in self._model.named_parameters() if weight.requires_grad}
        with _as_before(self._model), torch.enable_grad():
            loss = getattr(self._model(*args, **kwargs), "loss", None)
            if loss is None:
                raise _Unmeasured("the model's output has no loss; it has one where labels are given to it")
            try:
                found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
            except RuntimeError as error:
                if "heckpoint" not in str(error):
                    raise
                raise _Unmeasured("reentrant checkpointing cannot; use use_reentrant=False") from None
        return {name: grad for name, grad in zip(trained, found, strict=True) if grad is not None}


def check_every(every: int) -> int:
    """A number of steps, or 0 for never."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 0:
        raise InputError(f"gradient_ratio_every: got {quoted(every)}, expected a number of steps, or 0 for never")
    return every


@contextmanager
def _as_before(model: nn.Module) -> Iterator[None]:
    """Random numbers and buffers are afterwards what they were: a norm of batches keeps its running means in them."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        with streams_kept():
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


class _Unmeasured(Exception):
    """Why there is no ratio."""
