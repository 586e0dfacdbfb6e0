"""Precision modes: TF32 and its like in all products are a mode, in one product a fault unless it was said."""

from typing import Any

import pytest
import torch
from torch import Tensor

from families import build, tokens
from noisescope.errors import InputError
from noisescope.injection import Call, Watch, plain_name
from noisescope.locating import locate
from noisescope.locating.precision import MODES

PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "grouped_mm", "scaled_dot_product_attention")


class Narrow:
    """A device that rounds the operands of products: of all, or of one module."""

    def __init__(self, bits: int, module: str | None = None) -> None:
        self._mask, self._module = ~((1 << (23 - bits)) - 1), module

    def wants(self, _layer: object, _operator: str, module: str, phase: str) -> bool:
        return phase == "forward" and self._module in (None, module)

    def after(self, call: Call, value: Any) -> Any:
        if plain_name(call.function) not in PRODUCTS:
            return value
        with torch._C.DisableTorchFunction():
            args = tuple(self._cut(given) for given in call.args)
            kwargs = {name: self._cut(given) for name, given in call.kwargs.items()}
            return call.function(*args, **kwargs)

    def _cut(self, given: Any) -> Any:
        if not isinstance(given, Tensor) or given.dtype != torch.float32 or given.ndim < 2:
            return given
        return (given.contiguous().view(torch.int32) & self._mask).view(torch.float32)


@pytest.mark.parametrize(
    ("attn", "family"),
    [
        pytest.param(attn, family, marks=[pytest.mark.slow] if at % 2 != own else [])
        for own, attn in enumerate(["eager", "sdpa"])
        for at, family in enumerate(["llama", "gpt2", "mixtral"])
    ],
)
def test_tf32_in_all_products_is_a_mode(attn: str, family: str) -> None:
    model = build(family, attn=attn)
    with Watch(Narrow(10), model):
        verdict = locate(model, tokens(family))
    assert verdict.healthy
    assert [mode.partition(":")[0] for mode in verdict.precision_modes] == ["tf32"]


def test_tf32_in_one_product_is_a_fault_unless_it_was_said() -> None:
    model = build("llama")
    module = "model.layers.1.mlp.down_proj"
    with Watch(Narrow(10, module), model):
        verdict = locate(model, tokens())
        said = locate(model, tokens(), precision_mode="tf32")
    assert [(site.module, site.operator) for site in verdict.sites] == [(module, "linear")]
    assert verdict.sites[0].kind == "precision loss"
    assert said.healthy


def test_a_fault_beside_a_mode_is_still_found() -> None:
    model = build("llama")
    with Watch(Narrow(10), model):
        verdict = locate(model, tokens(), simulate="gain:0.1@1.mlp.up_proj.linear")
    assert [(site.layer, site.operator) for site in verdict.sites] == [(1, "linear")]


def test_coarser_operands_are_not_called_tf32() -> None:
    model = build("llama")
    with Watch(Narrow(6), model):
        verdict = locate(model, tokens())
    assert not any(mode.startswith("tf32") for mode in verdict.precision_modes)


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean"):
        locate(build("llama"), tokens(), precision_mode="tf23")
    assert "tf32" in MODES
