"""Faults of the arithmetic against loops in plain Python: every spelling of a product, and a table of exp.

The products are of small whole numbers, whose sums are exact: the loop and the fault must agree bit for bit.
"""

from math import exp, floor, frexp, ldexp

import pytest
import torch
import torch.nn.functional as F
from one_call import OneCall, broken
from torch import Tensor

from noisescope.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BITS = 3
"""of the accumulator: few, so that every sum loses some"""


def rounded(x: float, bits: int) -> float:
    """To nearest, ties to even, with so many bits after the first."""
    mantissa, exponent = frexp(x)
    shifted = ldexp(mantissa, bits + 1)
    low = floor(shifted)
    up = shifted - low > 0.5 or (shifted - low == 0.5 and low % 2 == 1)
    return ldexp(low + up, exponent - bits - 1)


def accumulated(left: list[float], right: list[float], start: float = 0.0, bits: int = BITS) -> float:
    """A scalar product whose accumulator is rounded after every sixteen terms."""
    total = start
    for at in range(0, len(left), 16):
        total = rounded(total + sum(a * b for a, b in zip(left[at : at + 16], right[at : at + 16], strict=True)), bits)
    return total


def by_loop(left: Tensor, right: Tensor, addend: Tensor | None = None) -> Tensor:
    """(rows, K) times (K, columns), element by element."""
    start = torch.zeros(len(left), right.shape[1]) if addend is None else addend.expand(len(left), right.shape[1])
    return torch.tensor(
        [
            [accumulated(row, column, float(start[i, j])) for j, column in enumerate(right.t().tolist())]
            for i, row in enumerate(left.tolist())
        ]
    )


def whole(*shape: int, seed: int = 0) -> Tensor:
    """Whole numbers from -3 to 3."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


X, W, B = whole(5, 40, seed=1), whole(40, 8, seed=2), whole(8, seed=3)
WT = W.t().contiguous()
SPELLINGS = {
    "linear": ("linear", lambda x, w, b: F.linear(x, w.t()), None),
    "linear, bias": ("linear", lambda x, w, b: F.linear(x, w.t(), b), B),
    "linear, by keyword": ("linear", lambda x, w, b: F.linear(input=x, weight=w.t(), bias=b), B),
    "matmul": ("matmul", lambda x, w, b: torch.matmul(x, w), None),
    "matmul, by keyword": ("matmul", lambda x, w, b: torch.matmul(input=x, other=w), None),
    "matmul, out": ("matmul", lambda x, w, b: torch.matmul(x, w, out=x.new_empty(5, 8)), None),
    "linalg.matmul": ("matmul", lambda x, w, b: torch.linalg.matmul(x, w), None),
    "@": ("matmul", lambda x, w, b: x @ w, None),
    "mm": ("matmul", lambda x, w, b: x.mm(w), None),
    "addmm": ("matmul", lambda x, w, b: torch.addmm(b, x, w), B),
    "addmm, beta and alpha": ("matmul", lambda x, w, b: torch.addmm(b / 2, x / 2, w, beta=2, alpha=2), B),
    "addmm, in place": ("matmul", lambda x, w, b: b.expand(5, 8).clone().addmm_(x, w), B),
    "einsum": ("matmul", lambda x, w, b: torch.einsum("ij,jk->ik", x, w), None),
    "einsum, implicit": ("matmul", lambda x, w, b: torch.einsum("ij,jk", [x, w]), None),
    "einsum, first index": ("matmul", lambda x, w, b: torch.einsum("ji,jk->ik", x.t(), w), None),
    "einsum, ellipsis": ("matmul", lambda x, w, b: torch.einsum("...j,kj->...k", x, w.t()), None),
    "bmm": ("bmm", lambda x, w, b: torch.bmm(x[None], w[None])[0], None),
    "baddbmm": ("bmm", lambda x, w, b: torch.baddbmm(b.expand(1, 5, 8), x[None], w[None])[0], B),
    "baddbmm, in place": ("bmm", lambda x, w, b: b.expand(1, 5, 8).clone().baddbmm_(x[None], w[None])[0], B),
    "matrix times vector": ("matmul", lambda x, w, b: torch.stack([x.matmul(w[:, j]) for j in range(8)], -1), None),
    "grouped_mm": (
        "linear",
        lambda x, w, b: F.grouped_mm(x, torch.stack([w, w]), offs=torch.tensor([2, 5], dtype=torch.int32)),
        None,
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_accumulator_rounds_after_every_sixteen_terms(spelling, dtype):
    operator, call, addend = SPELLINGS[spelling]
    w, b = W.to(dtype), B.to(dtype)
    model = OneCall(lambda x: call(x, w, b))
    clean = model(X.to(dtype))
    value, fault = broken(model, X.to(dtype), "low_precision_accumulate", BITS, site=f"0.{operator}")
    assert torch.equal(value, by_loop(X, W, addend).to(dtype))
    assert value.dtype == dtype
    assert fault.changed == int((value != clean).sum()) > 0
    assert torch.equal(model(X.to(dtype)), clean)


def test_several_sums_are_taken_one_index_after_the_other():
    left, right = whole(4, 3, 20, seed=4), whole(3, 20, 5, seed=5)
    model = OneCall(lambda x: torch.einsum("bhd,hdm->bm", x, right))
    value, _ = broken(model, left, "low_precision_accumulate", BITS, site="0.matmul")
    for row in range(4):
        for column in range(5):
            total = 0.0
            for head in range(3):
                total = accumulated(left[row, head].tolist(), right[head, :, column].tolist(), total)
            assert value[row, column].item() == total


def test_nothing_is_summed_by_an_outer_product():
    model = OneCall(lambda x: torch.einsum("i,j->ij", x, x))
    assert broken(model, whole(20), "low_precision_accumulate", BITS, site="0.matmul")[1].inert


def test_an_accumulator_of_float16_on_a_bfloat16_device():
    model = OneCall(lambda x: F.linear(x, WT.to(torch.bfloat16)))
    broken(model, X.to(torch.bfloat16), "low_precision_accumulate", 10)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: torch.einsum("ij,jk,kl->il", x, W, WT), "two operands only"),
        (lambda x: torch.einsum("ij,jj->i", x, torch.ones(40, 40)), "a letter twice in one operand"),
        (lambda x: torch.einsum("ij,j->i", x, torch.ones(1)), "repeats an operand along its sum"),
        (
            lambda x: F.grouped_mm(whole(8, 16), whole(16, 8), offs=torch.tensor([4, 16], dtype=torch.int32)),
            "groups lie along its sum",
        ),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_in_one_line(call, says):
    site = "0.linear" if "groups" in says else "0.matmul"
    with pytest.raises(InputError, match=says) as refused:
        broken(OneCall(call), X, "low_precision_accumulate", site=site)
    assert len(str(refused.value).splitlines()) == 1


# --- softmax ----------------------------------------------------------------------------------------------------


def softmax_by_table(row: list[float], step: float) -> list[float]:
    looked_up = [exp(round((x - max(row)) / step) * step) if x > float("-inf") else 0.0 for x in row]
    return [e / sum(looked_up) for e in looked_up]


@pytest.mark.parametrize("step", [2**-4, 0.5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.softmax(x, -1),
        lambda x: F.softmax(input=x, dim=-1),
        lambda x: torch.softmax(x, dim=-1),
        lambda x: torch.special.softmax(x, dim=-1),
        lambda x: x.softmax(1),
        lambda x: F.softmax(x, dim=-1, dtype=torch.float32),
        lambda x: x.t().softmax(0).t(),
    ],
)
def test_exp_comes_from_a_table(call, dtype, step):
    rows = torch.randn(6, 9, generator=torch.Generator().manual_seed(0)).mul(3).to(dtype)
    rows[2, 4:] = float("-inf")
    model = OneCall(call)
    clean = model(rows)
    value, fault = broken(model, rows, "lut_exp", step, site="0.softmax")
    due = torch.tensor([softmax_by_table(row, step) for row in rows.tolist()], dtype=torch.float64)
    torch.testing.assert_close(value.double(), due, rtol=2 * torch.finfo(value.dtype).eps, atol=1e-7)
    assert value.dtype == clean.dtype
    assert not fault.inert


def test_a_softmax_without_a_dim_is_refused():
    with pytest.warns(UserWarning, match="Implicit dimension"), pytest.raises(InputError, match="without a dim"):
        broken(OneCall(lambda x: F.softmax(x)), X, "lut_exp", site="0.softmax")


@pytest.mark.parametrize("kind", ["low_precision_accumulate", "lut_exp"])
def test_sparse_faults_of_the_arithmetic_strike_their_channels_only(kind):
    wide = whole(40, 60, seed=6)
    model = OneCall(lambda x: (x @ wide / 20).softmax(-1) if kind == "lut_exp" else x @ wide)
    clean, site = model(X), "0.softmax" if kind == "lut_exp" else "0.matmul"
    magnitude = None if kind == "lut_exp" else BITS
    dense, _ = broken(model, X, kind, magnitude, site=site)
    sparse, fault = broken(model, X, kind, magnitude, site=site, sparsity=0.1, seed=2)
    struck = (sparse != clean).any(0)
    assert 0 < int(struck.sum()) <= 6
    assert torch.equal(sparse[:, struck], dense[:, struck])
    assert fault.changed == int((sparse != clean).sum())
