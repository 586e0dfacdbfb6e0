"""Calls spelled in ways that hide what they are: by keyword, as views, in lists, with three dimensions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import noisescope as ns
from noisescope.errors import NothingMatched

NOISE = ns.RelativeGaussian(0.1)


class Model(nn.Module):
    """Two blocks that compute what `body` says."""

    def __init__(self, body) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block(body) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Block(nn.Module):
    def __init__(self, body) -> None:
        super().__init__()
        self.body = body
        self.lin = nn.Linear(8, 8)
        self.w = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return self.body(self, x)


X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))


def calls(body, **selection) -> dict[str, int]:
    with ns.inject(Model(body), NOISE, **selection) as run, torch.no_grad():
        run._watch.layout.root(X)
    return {operator: count["forward"] // 2 for operator, count in run.stats.by_operator.items()}


@pytest.mark.parametrize("equation", ["ij->ij", "ij->ji", "ij"])
@pytest.mark.parametrize("operands", [lambda w: (w,), lambda w: ([w],)], ids=["plain", "list"])
def test_an_operator_that_returns_its_operand_does_not_change_it(equation, operands) -> None:
    model = Model(lambda block, x: block.lin(x) + x @ torch.einsum(equation, *operands(block.w))).requires_grad_(False)
    before = [block.w.clone() for block in model.layers]
    clean = model(X)
    with ns.inject(model, NOISE) as run:
        assert not torch.equal(model(X), clean)
    assert run.stats.calls() > 0
    assert all(torch.equal(block.w, was) for block, was in zip(model.layers, before, strict=True))
    assert torch.equal(model(X), clean)


def test_products_with_own_parameters_are_linear_by_keyword_too() -> None:
    assert calls(lambda block, x: torch.matmul(input=x, other=block.w)) == {"linear": 1}
    assert calls(lambda block, x: torch.matmul(input=x, other=x.transpose(-1, -2)) @ x) == {"matmul": 2}


def test_residuals_are_found_by_keyword_too() -> None:
    assert calls(lambda block, x: torch.add(x, other=2 * x)) == {"residual": 1}
    assert calls(lambda block, x: torch.add(input=x, other=2 * x)) == {"residual": 1}


def test_the_second_product_of_attention_may_be_an_einsum() -> None:
    def attention(block, x):
        weights = torch.softmax(x @ x.transpose(-1, -2), -1)
        return torch.einsum("bqk,bkd->bqd", weights, x)

    assert calls(attention, operators="attention") == {"attention": 1}


HEADS = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("kind", "attend"),
    {
        "by keyword": lambda h: F.scaled_dot_product_attention(query=h, key=h, value=h),
        "three dimensions, groups": lambda h: F.scaled_dot_product_attention(h[0], h[0, :2], h[0, :2], enable_gqa=True),
        "no batch": lambda h: F.scaled_dot_product_attention(h[:0], h[:0], h[:0]),
        "a mask per head": lambda h: F.scaled_dot_product_attention(
            h[:, :2], h[:, :2], h[:, :2], torch.ones(2, 6, 6, dtype=torch.bool).tril()
        ),
        "causal by position": lambda h: F.scaled_dot_product_attention(h, h, h, None, 0.0, True),
    }.items(),
)
def test_attention_in_steps_takes_what_the_kernel_takes(kind, attend) -> None:
    model = Model(lambda block, x: attend(HEADS))
    with torch.no_grad():
        clean = model(X)
        with ns.inject(model, ns.RelativeGaussian(0.0), operators="softmax") as run:
            found = model(X)
    assert run.stats.calls(operator="softmax") == 2, kind
    torch.testing.assert_close(found, clean, rtol=1e-5, atol=1e-6)
    assert run.steps_difference < 1e-5


@pytest.mark.parametrize("named", [False, True])
def test_dropout_in_attention_draws_as_the_kernel_does(named) -> None:
    def attend(block, x):
        given = {"attn_mask": None, "dropout_p": 0.3} if named else {}
        return F.scaled_dot_product_attention(x, x, x, *(() if named else (None, 0.3)), **given)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(7)
        x = X.clone().requires_grad_()
        out = model(x)
        out.sum().backward()
        return out.detach(), torch.get_rng_state()

    model = Model(attend)
    clean, state = run()
    with ns.inject(model, ns.RelativeGaussian(0.0), operators="softmax", phases="backward"):
        found, after = run()
    assert torch.equal(found, clean)
    assert torch.equal(state, after)


@pytest.mark.parametrize("reentrant", [False, True])
def test_pending_passes_by_keyword_are_told_apart(reentrant) -> None:
    class ByKeyword(Model):
        def forward(self, x, on):
            for layer in self.layers:
                x = checkpoint(lambda y, layer=layer: layer(x=y), x, use_reentrant=reentrant) if on else layer(x=x)
            return x

    def gradients(on: bool) -> list[torch.Tensor]:
        model = ByKeyword(lambda block, x: F.silu(block.lin(input=x)))
        with ns.inject(model, NOISE):
            pending = [model((X + k).requires_grad_(), on) for k in (0, 1)]
            for out in pending:
                out.square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    assert all(torch.equal(a, b) for a, b in zip(gradients(True), gradients(False), strict=True))


@pytest.mark.parametrize(
    "transformed",
    [lambda model: torch.func.vmap(model)(X), lambda model: torch.func.grad(lambda x: model(x).sum())(X)],
    ids=["vmap", "grad"],
)
def test_transforms_are_refused_with_the_reason(transformed) -> None:
    model = Model(lambda block, x: block.lin(x))
    clean = transformed(model)
    with pytest.raises(NothingMatched, match=r"torch\.func"), ns.inject(model, NOISE):
        transformed(model)
    assert torch.equal(transformed(model), clean)
