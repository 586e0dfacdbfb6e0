"""Rounding bounds: what this machine computes is inside them, what is three bounds off is outside, for every rule."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisescope.locating.host import HostCall, check_on_host, reference_of
from noisescope.locating.host.products import check_product, products_of
from noisescope.locating.host.rules import RULES, rule_of
from noisescope.locating.rounding import FALSE_ALARMS, half_ulp, quantile, share_of_alarms, unit

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Sample = tuple[Callable[..., Any], Callable[[Callable[..., Tensor]], tuple[Any, ...]]]

SAMPLES: dict[str, Sample] = {
    "linear": (F.linear, lambda t: (t(3, 5, 40), t(24, 40), t(24))),
    "matmul": (torch.matmul, lambda t: (t(2, 3, 6, 40), t(2, 3, 40, 7))),
    "addmm": (torch.addmm, lambda t: (t(24), t(6, 40), t(40, 24))),
    "baddbmm": (torch.baddbmm, lambda t: (t(3, 6, 7), t(3, 6, 40), t(3, 40, 7))),
    "softmax": (lambda x: F.softmax(x, dim=-1), lambda t: (8 * t(4, 33),)),
    "silu": (F.silu, lambda t: (6 * t(4, 33),)),
    "gelu": (F.gelu, lambda t: (6 * t(4, 33),)),
    "exp": (torch.exp, lambda t: (3 * t(4, 33),)),
    "tanh": (torch.tanh, lambda t: (3 * t(4, 33),)),
    "cos": (torch.cos, lambda t: (30 * t(4, 33),)),
    "rsqrt": (torch.rsqrt, lambda t: (t(4, 33).abs() + 1,)),
    "mean": (lambda x: torch.mean(x, -1, keepdim=True), lambda t: (t(4, 33),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (48,), w, b), lambda t: (t(5, 48) + 2, t(48), t(48))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (48,), w, 1e-5), lambda t: (t(5, 48), t(48))),
    "sdpa": (F.scaled_dot_product_attention, lambda t: (t(1, 2, 9, 16), t(1, 2, 9, 16), t(1, 2, 9, 16))),
}


class _Named:
    """A function that is called something, as torch's own are."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.__name__, self._function = name, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def host_call(name: str, dtype: torch.dtype, seed: int = 0) -> HostCall:
    generator = torch.Generator().manual_seed(seed)
    function, make = SAMPLES[name]
    args = make(lambda *shape: torch.randn(shape, generator=generator).to(dtype))
    if not hasattr(torch, name) and name == "sdpa":
        return HostCall("attention", function, args, {}, None)
    plain = {
        "softmax": (F.softmax, args, {"dim": -1}),
        "mean": (torch.mean, args, {"dim": -1, "keepdim": True}),
        "layer_norm": (F.layer_norm, (args[0], (48,), *args[1:]), {}) if name == "layer_norm" else None,
        "rms_norm": (F.rms_norm, (args[0], (48,), args[1], 1e-5), {}) if name == "rms_norm" else None,
    }.get(name)
    function, args, kwargs = plain if plain is not None else (function, args, {})
    return HostCall(name, function, args, kwargs, None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SAMPLES)
def test_what_this_machine_computes_is_within_its_bound(name: str, dtype: torch.dtype) -> None:
    for seed in range(3):
        call = host_call(name, dtype, seed)
        value = call.native()
        outcome = check_on_host(call, value, FALSE_ALARMS)
        assert outcome.judged
        assert not outcome.bad
        rule = rule_of(call)
        if rule is not None and rule.spread is not None and products_of(call) is None:  # also where bits agree
            due, _ = reference_of(call, value, FALSE_ALARMS)
            bound = half_ulp(due, dtype) + rule.spread(call, due, FALSE_ALARMS)
            assert bool(((value.double() - due).abs() <= bound).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SAMPLES)
def test_one_element_that_is_off_is_counted(name: str, dtype: torch.dtype) -> None:
    call = host_call(name, dtype)
    value = call.native().clone()
    due, _ = reference_of(call, value, FALSE_ALARMS)
    at = due.abs().reshape(-1).argmax()
    value.view(-1)[at] *= 1.25
    assert check_on_host(call, value, FALSE_ALARMS).bad == 1


@pytest.mark.parametrize("name", ["linear", "matmul", "addmm", "baddbmm"])
def test_products_are_checked_as_by_an_obvious_loop(name: str) -> None:
    """Against sums in Python's own arithmetic, element by element: error over half an ulp and the theorem's bound."""
    call = host_call(name, torch.float32)
    (product,) = products_of(call) or []
    value = call.native()
    value.view(-1)[3] += 1e-3
    lam = quantile(product.length, value.numel(), FALSE_ALARMS)
    worst = 0.0
    for where in torch.cartesian_prod(*map(torch.arange, value.shape)):
        *batch, row, column = where.tolist()
        x = product.left[(*batch, row)].tolist() if product.left.ndim > 2 else product.left[row].tolist()
        right = product.right[tuple(batch)] if product.right.ndim > 2 else product.right
        w = right[:, column].tolist()
        b = 0.0
        if product.addend is not None:
            b = float(product.addend.expand(value.shape)[tuple(where)])
        due = math.fsum([*(a * c for a, c in zip(x, w, strict=True)), b])
        sizes = math.sqrt(math.fsum(a * a for a in x)) * math.sqrt(math.fsum(c * c for c in w))
        rounded = lam * math.sqrt(len(x)) * 2**-24
        bound = rounded * sizes + (rounded + 2 * 2**-24) * abs(b) + len(x) * 2**-126
        last = 2.0 ** (math.frexp(due)[1] - 1) * 2**-24
        worst = max(worst, abs(float(value[tuple(where)]) - due) / (last + bound))
    bad, ratio = check_product(product, value, FALSE_ALARMS)
    assert bad == 1
    assert ratio == pytest.approx(worst, rel=1e-3)


def test_wide_products_are_checked_in_pieces_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    call = host_call("linear", torch.float32)
    (product,) = products_of(call) or []
    value = call.native()
    value.view(-1)[[3, 100, 200]] *= 1.01
    whole = check_product(product, value, FALSE_ALARMS)
    monkeypatch.setattr("noisescope.locating.host.products.WIDE", 7)
    assert check_product(product, value, FALSE_ALARMS)[0] == whole[0] == 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_half_an_ulp_is_half_of_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    values = torch.randn(200, generator=torch.Generator().manual_seed(0)).to(dtype).abs()
    up = torch.nextafter(values.float(), torch.tensor(math.inf)) if dtype is torch.float32 else None
    gap = (up.double() - values.double()) / 2 if up is not None else _gap(values) / 2
    assert torch.equal(half_ulp(values.double(), dtype), gap)


def _gap(values: Tensor) -> Tensor:
    bits = values.view(torch.int16)
    return (bits + 1).view(values.dtype).double() - values.double()


def test_alarms_of_all_tests_add_up() -> None:
    total = math.fsum(share_of_alarms(number) for number in range(1, 200_000))
    assert 0.999 * FALSE_ALARMS < total <= FALSE_ALARMS


def test_the_quantile_solves_the_theorem() -> None:
    lam = quantile(576, 36864, 1e-9)
    assert 36864 * 2 * 576 * math.exp(-(lam**2) / 2) == pytest.approx(1e-9)


class _RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, 48))
        self.variance_epsilon = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_a_hand_written_norm_has_a_bound_that_sees_four_lost_bits(dtype: torch.dtype) -> None:
    module = _RMSNorm().to(dtype)
    x = torch.randn(6, 48, generator=torch.Generator().manual_seed(1)).to(dtype)
    call = HostCall("rms_norm", module, (x,), {}, module)
    value = call.native().detach()
    assert not check_on_host(call, value, FALSE_ALARMS).bad
    integer = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[dtype]
    cut = (value.contiguous().view(integer) & ~0xF).view(dtype)
    assert check_on_host(call, cut, FALSE_ALARMS).bad


def test_every_operator_of_the_catalogue_has_a_rule() -> None:
    from noisescope.operators import OPERATORS

    without = set(OPERATORS) - set(RULES) - {"residual", "attention"}
    assert not without
    assert RULES["add"].spread is None
    assert RULES["scaled_dot_product_attention"].spread is not None


def test_a_function_without_a_rule_is_judged_by_its_bits_alone() -> None:
    unknown = _Named("erfinv_of_ours", lambda x: x * 2)
    call = HostCall("erfinv_of_ours", unknown, (torch.ones(3),), {}, None)
    assert rule_of(call) is None
    assert check_on_host(call, torch.full((3,), 2.0), FALSE_ALARMS).judged
    assert not check_on_host(call, torch.full((3,), 2.5), FALSE_ALARMS).judged


def test_numbers_too_small_to_be_normal_may_come_as_zero() -> None:
    x = torch.tensor([1e-39, 1.0])
    call = HostCall("mul", torch.mul, (x, torch.tensor([0.5, 0.5])), {}, None)
    outcome = check_on_host(call, torch.tensor([0.0, 0.5]), FALSE_ALARMS)
    assert not outcome.bad
    assert outcome.flushed == 1
    assert check_on_host(call, torch.tensor([5e-40, 0.0]), FALSE_ALARMS).bad == 1


def test_the_unit_of_a_dtype_is_half_its_epsilon() -> None:
    assert unit(torch.float32) == 2**-24
    assert unit(torch.bfloat16) == 2**-8
