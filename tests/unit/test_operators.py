"""The catalogue: every spelling is seen, and is seen because its row says so."""

import pytest
import torch
import torch.nn.functional as F

import noisescope as ns
from families import build, tokens
from noisescope import operators
from noisescope.errors import InputError, NothingMatched
from noisescope.operators import OPERATORS, Operator, Spelling, expand
from noisescope.testing import TensorMaker, _OneCall, check_operator, check_spelling

# SPEC 2.1, written down again by hand: how people spell each operator.
WRITTEN = {
    "torch.matmul": ("matmul", lambda a, b: torch.matmul(a, b)),
    "@": ("matmul", lambda a, b: a @ b),
    "Tensor.matmul": ("matmul", lambda a, b: a.matmul(b)),
    "torch.mm": ("matmul", lambda a, b: torch.mm(a, b)),
    "Tensor.mm": ("matmul", lambda a, b: a.mm(b)),
    "torch.addmm": ("matmul", lambda a, b: torch.addmm(torch.zeros(4, 4), a, b)),
    "Tensor.addmm": ("matmul", lambda a, b: torch.zeros(4, 4).addmm(a, b)),
    "einsum": ("matmul", lambda a, b: torch.einsum("ij,jk->ik", a, b)),
    "torch.bmm": ("bmm", lambda a, b: torch.bmm(a[None], b[None])),
    "Tensor.bmm": ("bmm", lambda a, b: a[None].bmm(b[None])),
    "torch.baddbmm": ("bmm", lambda a, b: torch.baddbmm(torch.zeros(1, 4, 4), a[None], b[None])),
    "Tensor.baddbmm": ("bmm", lambda a, b: torch.zeros(1, 4, 4).baddbmm(a[None], b[None])),
    "F.linear": ("linear", lambda a, b: F.linear(a, b)),
    "F.softmax": ("softmax", lambda a, b: F.softmax(a, dim=-1)),
    "torch.softmax": ("softmax", lambda a, b: torch.softmax(a, -1)),
    "Tensor.softmax": ("softmax", lambda a, b: a.softmax(-1)),
    "F.silu": ("silu", lambda a, b: F.silu(a)),
    "F.gelu": ("gelu", lambda a, b: F.gelu(a)),
    "F.gelu tanh": ("gelu", lambda a, b: F.gelu(a, approximate="tanh")),
    "F.layer_norm": ("layer_norm", lambda a, b: F.layer_norm(a, (4,))),
    "F.rms_norm": ("rms_norm", lambda a, b: F.rms_norm(a, (4,))),
    "F.scaled_dot_product_attention": (
        "attention",
        lambda a, b: F.scaled_dot_product_attention(a[None], a[None], b[None]),
    ),
    "F.embedding": ("embedding", lambda a, b: F.embedding(torch.arange(4), a)),
    "+": ("residual", lambda a, b: a + b),
    "torch.add": ("residual", lambda a, b: torch.add(a, b)),
    "Tensor.add": ("residual", lambda a, b: a.add(b)),
    "+=": ("residual", lambda a, b: a.__iadd__(b)),
}


def run_written(spelling: str):
    operator, call = WRITTEN[spelling]
    t = TensorMaker()
    model = _OneCall(call, (t(4, 4), t(4, 4)), {})
    with ns.inject(model, ns.AbsoluteGaussian(0.1), operators=[operator]) as run, torch.no_grad():
        model(torch.zeros(4, 4))
    return run


@pytest.mark.parametrize("spelling", WRITTEN)
def test_every_way_to_write_an_operator_is_injected_once(spelling: str) -> None:
    run = run_written(spelling)
    assert run.stats.by_operator == {WRITTEN[spelling][0]: {"forward": 1, "backward": 0}}


@pytest.mark.parametrize("spelling", WRITTEN)
def test_a_spelling_taken_out_of_the_catalogue_is_missed(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: without its spelling each call goes by unseen."""
    _, call = WRITTEN[spelling]
    seen = []

    class Recorder(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    t = TensorMaker()
    with Recorder():
        call(t(4, 4), t(4, 4))
    rest = {function: name for function, name in operators.spellings().items() if function not in seen}
    assert len(rest) == len(operators.spellings()) - 1, "the call uses exactly one spelling of the catalogue"
    monkeypatch.setattr("noisescope.injection.watching.spellings", lambda: rest)
    with pytest.raises(NothingMatched):
        run_written(spelling)


@pytest.mark.parametrize("name", OPERATORS)
def test_rows_conform(name: str) -> None:
    check_operator(OPERATORS[name])


def test_a_row_whose_spelling_computes_nothing_of_ours_does_not_conform() -> None:
    stray = Operator("linear", (Spelling("torch.cumsum", lambda t: ((t(2, 4), 0), {})),), refused=lambda t: ((), {}))
    with pytest.raises((AssertionError, NothingMatched)):
        check_spelling(stray, stray.spellings[0])


def test_names_and_spellings_can_be_taken_only_once() -> None:
    with pytest.raises(InputError, match='operator "softmax" is in the catalogue already'):
        operators.register(OPERATORS["softmax"])
    with pytest.raises(InputError, match=r"torch\.matmul spells matmul already"):
        operators.register(Operator("product", OPERATORS["matmul"].spellings, refused=lambda t: ((), {})))
    assert "product" not in OPERATORS


def test_linear_and_matmul_are_selected_apart() -> None:
    model, inputs = build("llama"), tokens()
    with torch.no_grad():
        with ns.inject(model, ns.RelativeGaussian(0.05), operators=["matmul"]) as products:
            model(**inputs)
        with ns.inject(model, ns.RelativeGaussian(0.05), operators=["linear"]) as linears:
            model(**inputs)
    assert products.stats.by_operator == {"matmul": {"forward": 6, "backward": 0}}
    assert linears.stats.by_operator == {"linear": {"forward": 22, "backward": 0}}


def test_expand() -> None:
    assert expand(None) is None
    assert expand([]) == ()
    assert expand("softmax, norm") == ("softmax", "layer_norm", "rms_norm")
    assert expand(["layernorm"]) == ("layer_norm", "rms_norm")
    with pytest.raises(InputError, match='unknown operator "sofmax", did you mean "softmax"'):
        expand(["sofmax"])
