"""Modules that are a product with a matrix: which they are, and the matrix, however the architecture stores it.

nn.Linear and its kin       outputs x inputs
Conv1D of GPT-2             inputs x outputs
"""

from torch import Tensor, nn

__all__ = ["is_linear", "matrix", "reduction_axis"]


def is_linear(module: nn.Module) -> bool:
    """True for a module that computes `x W^T + b` with a weight of its own, in a number format that can be scaled."""
    weight = module._parameters.get("weight")
    if weight is None or weight.ndim != 2 or not weight.is_floating_point():
        return False
    return isinstance(module, nn.Linear) or _is_stored_by_inputs(module)


def matrix(module: nn.Module) -> Tensor:
    """The weight of a linear as outputs x inputs: a view, so that what is written to it is written to the weight."""
    weight = module._parameters["weight"]
    assert weight is not None, "only for what is_linear"
    return weight.T if _is_stored_by_inputs(module) else weight


def reduction_axis(module: nn.Module) -> int:
    """The axis of the weight that the product sums over: that of the inputs."""
    return 0 if _is_stored_by_inputs(module) else 1


def _is_stored_by_inputs(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    widths = (getattr(module, "nx", None), getattr(module, "nf", None))
    return not isinstance(module, nn.Linear) and weight is not None and tuple(weight.shape) == widths
