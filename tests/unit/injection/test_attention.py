"""Attention in steps is what the fused kernel computes."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from noisescope.injection.attention import attention_in_steps, plain_call


def qkv(heads: int = 4, kv_heads: int = 4, queries: int = 5, keys: int = 7, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, queries, 8), (2, kv_heads, keys, 8), (2, kv_heads, keys, 8)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def masks():
    lower = torch.ones(5, 7).tril().bool()
    dead = lower.clone()
    dead[2] = False
    return {
        "none": None,
        "bool": lower,
        "dead row": dead.expand(2, 1, 5, 7),
        "additive": torch.zeros(5, 7).masked_fill(~lower, float("-inf")),
        "additive dead row": torch.zeros(5, 7).masked_fill(~dead, float("-inf")),
        "bias": torch.linspace(-3, 3, 35).view(5, 7),
    }


@pytest.mark.parametrize(("mask", "scale"), list(itertools.product(masks(), [None, 0.3])))
def test_masks_and_scales(mask: str, scale: float | None) -> None:
    options = {"attn_mask": masks()[mask], "scale": scale}
    expected = F.scaled_dot_product_attention(*qkv(), **options)
    found = attention_in_steps(plain_call, *qkv(), **options)
    assert torch.allclose(found, expected, atol=1e-6)
    assert found.isfinite().all()


def test_causal_and_grouped_queries() -> None:
    for options, shapes in [
        ({"is_causal": True}, {}),
        ({"enable_gqa": True}, {"kv_heads": 2}),
        ({"enable_gqa": True, "is_causal": True}, {"kv_heads": 1}),
    ]:
        expected = F.scaled_dot_product_attention(*qkv(**shapes), **options)
        assert torch.allclose(attention_in_steps(plain_call, *qkv(**shapes), **options), expected, atol=1e-6)


def test_gradients_agree() -> None:
    def grads(function):
        tensors = [t.requires_grad_() for t in qkv()]
        function(*tensors, attn_mask=masks()["bool"]).square().sum().backward()
        return [t.grad for t in tensors]

    steps = grads(lambda *a, **k: attention_in_steps(plain_call, *a, **k))
    for mine, theirs in zip(steps, grads(F.scaled_dot_product_attention), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    expected = F.scaled_dot_product_attention(*qkv(dtype=dtype))
    found = attention_in_steps(plain_call, *qkv(dtype=dtype))
    assert found.dtype == dtype
    assert torch.allclose(found.float(), expected.float(), atol=2e-2 if dtype != torch.float64 else 1e-6)


def test_dropout_drops_the_stated_share() -> None:
    torch.manual_seed(0)
    ones = torch.ones(1, 1, 1, 1, dtype=torch.float32)
    q, k, v = ones.expand(1, 8, 64, 8), ones.expand(1, 8, 64, 8), torch.eye(64).expand(1, 8, 64, 64)
    weights = attention_in_steps(plain_call, q, k, v, dropout_p=0.25)
    assert (weights == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
