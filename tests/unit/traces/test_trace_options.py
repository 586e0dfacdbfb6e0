"""Options of trace() and tracing(): each does what it says, or is refused in one line."""

import copy
from typing import Any

import pytest
import torch

import noisescope as ns
from families import build, tokens

# --- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_predicts_nothing(side: str) -> None:
    model, ids = build("llama"), tokens("llama", rows=3, length=16)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    mask = mask if side == "left" else mask.flip(1)
    found = ns.trace(model, {"input_ids": ids, "attention_mask": mask}, backward=True, full=True, floor=False)
    at = next(n for n, site in enumerate(found.sites) if site.name.startswith("lm_head.linear.0.backward"))
    gradient = found.full[at]()[0]
    assert not gradient[mask == 0].any()
    ends = mask.bool() & ~torch.cat([mask[:, 1:], torch.zeros(3, 1)], dim=1).bool()
    assert bool((gradient.abs().sum(-1) > 0).eq(mask.bool() & ~ends).all())


def test_attention_in_steps_has_the_gradients_of_a_kernel_beside_padding() -> None:
    fused, ids = build("llama", attn="sdpa"), tokens("llama", rows=3, length=16)["input_ids"]
    stepwise = copy.deepcopy(fused)
    stepwise.set_attn_implementation("eager")
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    found = ns.compare(ns.trace(fused, given, backward=True), ns.trace(stepwise, given, backward=True, floor=False))
    assert not [row.site.name for row in found.sites if row.beyond and "attention" not in row.site.name]


@pytest.mark.parametrize("family", ["llama", "cohere", "bloom"])
def test_gradients_of_a_float16_suspect_do_not_vanish(family: str) -> None:
    model, given = build(family), tokens(family, rows=3, length=20)
    reference = ns.trace(model, given, backward=True, checkpoint="c")
    narrow: Any = copy.deepcopy(model).half()
    found = ns.compare(reference, ns.trace(narrow, given, backward=True, checkpoint="c", floor=False))
    assert found.outcome == "within the noise floor"
