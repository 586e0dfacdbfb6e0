"""The trace of the loss's Hessian by layer: curvature, with all layers from each Hessian-vector product.

    trace = hessian_trace(model, data, probes=20)
    for layer, curvature in trace.layers.items():
        print(layer, curvature.trace)                    # 7 38.9 [31.0, 46.8]

Hutchinson's estimator with one probe v over all parameters, random signs, and one product Hv: for layer l

    E v_l . (Hv)_l = sum over i in l, over all j of E[v_i v_j] H_ij = tr H_ll,

as E[v_i v_j] is 1 for i = j and else 0. So one product serves every layer, without a bias. Its noise has variance
2 |H_ll off the diagonal|^2 + sum over other layers |H_lm|^2 (Frobenius); a product for each layer would save the second
term at the price of as many products as layers.

Cost in forward-pass equivalents: a batch takes 1 forward and 2 for the gradient, once, and 6 for each probe. (For a
linear y = Wx it has six matrix products: two for the backward pass of dx = W^T dy, two for that of dW = dy x^T, and two
for the backward pass of y itself. Counted operations are 2.0 and 6.0 times those of the forward pass.)
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import InputError, ModelError
from ..keys import Key
from ..sites import Layout
from ..specs import Layer
from .batches import Batch, EvaluationSet
from .curvature import Curvature, by_layer, by_parameter, curvature_json, layer_sums, whole
from .labels import as_batch, log_likelihood, predicted_logits
from .parameters import Parameters, differentiating

__all__ = [
    "HessianTrace",
    "LossFunction",
    "compute_layer_hessian_trace",
    "estimate_hessian_trace",
    "hessian_trace",
    "next_token_loss",
]

_ONLY_ONCE = 'an operator of the model or the loss has no second derivative (try attn="eager")'

LossFunction: TypeAlias = Callable[[nn.Module, Any], Tensor]
"""loss_fn(model, batch) -> a scalar: it calls the model itself"""


@dataclass(frozen=True, eq=False)
class HessianTrace:
    """Traces of the diagonal blocks of the Hessian, by layer and by parameter tensor."""

    layers: Mapping[Layer, Curvature]
    parameters: Mapping[str, Curvature]
    total: Curvature
    clusters: Literal["batches", "probes"]
    """what the intervals come from: batches, each with probes of its own, so that text and probes are both covered; for
    a single batch its probes, so that the interval is that of the trace on this batch"""
    probe_stderr: Mapping[Layer, float]
    """the part of a layer's standard error that more probes would lessen"""
    batches: int
    probes: int
    """for each batch"""
    cost: float
    """forward-pass equivalents"""

    def as_json(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {
            "layers": curvature_json(self.layers),
            "parameters": curvature_json(self.parameters),
            "total": self.total.as_json(),
            "clusters": self.clusters,
            "probe_stderr": {str(layer): stderr for layer, stderr in self.probe_stderr.items()},
            "batches": self.batches,
            "probes": self.probes,
            "cost": self.cost,
        }


def next_token_loss(model: nn.Module, batch: Batch | Mapping[str, Tensor]) -> Tensor:
    """Mean cross entropy of the next token over the predictions that count, in nats."""
    ours = as_batch(batch)
    logits = predicted_logits(model, ours)
    return -log_likelihood(logits, ours.targets) / len(logits)


def hessian_trace(
    model: nn.Module,
    data: Any,
    *,
    loss_fn: LossFunction | None = None,
    probes: int = 10,
    seed: int = 0,
    layout: Layout | None = None,
    blocks: str | None = None,
    progress: Callable[[], None] | None = None,
) -> HessianTrace:
    """Hutchinson's estimate of the trace of the Hessian, for every layer at once.

    The loss is the mean next-token cross entropy over all predictions, or the mean of `loss_fn(model, batch)` over
    batches. `data` is one batch or several, in any form that the loss takes: a dictionary, a tensor and a
    tuple of tensors are one batch. Fused attention has no second derivative, so torch's runs in separate steps while
    this lasts. Use float32: a narrower Hessian is mostly rounding. Do not use it with kernels from outside torch whose
    gradient is computed out of autograd's sight. The model is left as it was.
    """
    if probes < 1:
        raise InputError(f"probes: got {probes}, expected >= 1")
    parameters = Parameters.of(model, layout=layout, blocks=blocks)
    found, weights = [], []
    with differentiating(model, parameters), sdpa_kernel(SDPBackend.MATH):
        for step, batch in enumerate(_several(data)):
            given = as_batch(batch, where=f"data[{step}]") if loss_fn is None else batch
            weight = 1 if loss_fn is not None else int(given.predicted.sum())
            if weight:
                loss = (loss_fn or next_token_loss)(model, given)
                _check(loss, step)
                weights.append(weight)
                found.append(_products(loss, parameters, Key(seed, "hessian", step=step), probes))
            if progress is not None:
                progress()
    if not found:
        raise InputError("data: got no token to predict, expected a batch or several")
    return _read(parameters, np.array(found), np.array(weights, dtype=np.float64), probes)


def estimate_hessian_trace(model: nn.Module, loss_fn: LossFunction | None, data: Any, num_samples: int = 10) -> float:
    """The trace of the whole Hessian; `loss_fn(model, batch)` gives a scalar, None is the next-token cross entropy."""
    return hessian_trace(model, data, loss_fn=loss_fn, probes=num_samples).total.trace.value


def compute_layer_hessian_trace(
    model: nn.Module, loss_fn: LossFunction | None, data: Any, num_samples: int = 10
) -> dict[Layer, float]:
    """Layer -> trace of its block of the Hessian; arguments as for `estimate_hessian_trace`."""
    found = hessian_trace(model, data, loss_fn=loss_fn, probes=num_samples)
    return {layer: curvature.trace.value for layer, curvature in found.layers.items()}


def _several(data: Any) -> Iterable[Any]:
    """Batches one by one: what a DataLoader gives for one step is one batch."""
    is_one = isinstance(data, (Batch, Mapping, Tensor, str)) or (
        isinstance(data, (list, tuple)) and any(isinstance(part, Tensor) for part in data)
    )
    if is_one or not isinstance(data, (EvaluationSet, Iterable)):
        return (data,)
    return data


def _check(loss: Any, step: int) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        got = f"a tensor of {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError(f"loss_fn: got {got}, expected one number that depends on the parameters, as a tensor")
    if not bool(loss.detach().isfinite()):
        raise ModelError(f"data[{step}]: the loss is {loss.item()}, so that it has no curvature")


# --- Hessian-vector products ------------------------------------------------------------------------------------


def _products(loss: Tensor, parameters: Parameters, key: Key, probes: int) -> list[list[float]]:
    """v . Hv by parameter tensor, for each probe."""
    grads = torch.autograd.grad(loss.squeeze(), parameters.tensors, create_graph=True, allow_unused=True)
    _refuse_constant_gradients(grads)
    curved = {at: grad for at, grad in enumerate(grads) if grad is not None and grad.requires_grad}
    return [
        _product(curved, parameters, _signs(parameters, key, probe), keep=probe < probes - 1) for probe in range(probes)
    ]


def _signs(parameters: Parameters, key: Key, probe: int) -> list[Tensor]:
    """A probe: random signs for every parameter, keyed by its name."""
    return [
        torch.randint(
            0, 2, tensor.shape, generator=key.part(f"{name}#{probe}").generator(tensor.device), device=tensor.device
        )
        .to(tensor.dtype)
        .mul_(2)
        .sub_(1)
        for name, tensor in zip(parameters.names, parameters.tensors, strict=True)
    ]


def _product(grads: dict[int, Tensor], parameters: Parameters, signs: list[Tensor], *, keep: bool) -> list[float]:
    """v . Hv by parameter tensor, v being the signs."""
    if not grads:  # a loss that is linear in its parameters
        return [0.0] * len(signs)
    probe = [signs[at] for at in grads]
    try:
        hv = torch.autograd.grad(tuple(grads.values()), parameters.tensors, probe, retain_graph=keep, allow_unused=True)
    except RuntimeError as error:
        raise _without_second_derivative(error) from error
    return [
        0.0 if part is None else float((sign * part).sum(dtype=torch.float64))
        for sign, part in zip(signs, hv, strict=True)
    ]


def _without_second_derivative(error: RuntimeError) -> Exception:
    """The error to raise: ours where torch says that an operator can be differentiated only once."""
    return ModelError(f"{_ONLY_ONCE}: {error}") if "not implemented" in str(error) else error


def _refuse_constant_gradients(grads: tuple[Tensor | None, ...]) -> None:
    """Raises where an operator's gradient is marked as a constant: torch leaves its second derivative out, silently."""
    waiting = [grad.grad_fn for grad in grads if grad is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if node.name() == "torch::autograd::Error":
            raise ModelError(f"{_ONLY_ONCE}: a function marked with once_differentiable")
        new = {below for below, _ in node.next_functions} - seen
        seen |= new
        waiting += new


# --- figures ----------------------------------------------------------------------------------------------------


def _read(parameters: Parameters, found: np.ndarray, weights: np.ndarray, probes: int) -> HessianTrace:
    """Figures from batches x probes x parameters."""
    if len(found) > 1:
        clusters: Literal["batches", "probes"] = "batches"
        sums, shares = found.mean(1) * weights[:, None], weights
    else:
        clusters = "probes"
        sums, shares = found[0], np.ones(probes)
    return HessianTrace(
        by_layer(parameters, sums, shares, positive=False),
        by_parameter(parameters, sums, shares, positive=False),
        whole(parameters, sums, shares, positive=False),
        clusters,
        {layer: _probe_stderr(values, weights) for layer, values in layer_sums(parameters, found).items()},
        len(found),
        probes,
        cost=3.0 + 6.0 * probes,
    )


def _probe_stderr(values: np.ndarray, weights: np.ndarray) -> float:
    """The standard error that is left on these very batches, from how probes differ on each."""
    probes = values.shape[1]
    if probes < 2:
        return inf
    share = weights / weights.sum()
    return float(np.sqrt(np.sum(share**2 * values.var(1, ddof=1) / probes)))
