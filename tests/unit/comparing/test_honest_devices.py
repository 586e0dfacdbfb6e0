"""Honest devices: other dtypes, attention, threads, orders of summation. No divergence beyond the noise floor.

With fixtures, families and settings below there are more than a hundred comparisons and no false alarm, so that the
rate is below 3%; `benchmarks/compare` has more.
"""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import noisescope as ns
from families import FAMILIES, build, tokens
from noisescope.comparing import Comparison
from noisescope.devices import DEVICES
from trained import fixture

NAMES = [*FAMILIES, "trained llama", "trained gpt2"]
HONEST = [name for name, row in DEVICES.items() if row.honest]
COMPARED: list[str] = []


def model_of(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    if name.startswith("trained"):
        ids = torch.randint(3, 500, (3, 32), generator=torch.Generator().manual_seed(1))
        return fixture(name.split()[1])[0], {"input_ids": ids}
    return build(name), tokens(name, rows=3, length=24)


def eager(model: nn.Module) -> nn.Module | None:
    other = copy.deepcopy(model)
    try:
        other.set_attn_implementation("eager")
    except ValueError:
        return None
    return other


def suspects(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield "bfloat16", copy.deepcopy(model).bfloat16()
    yield "float16", copy.deepcopy(model).half()
    for dtype in (torch.float32, torch.bfloat16):
        if (other := eager(copy.deepcopy(model).to(dtype))) is not None:
            yield f"eager {dtype}", other


def assert_healthy(found: Comparison, what: str) -> None:
    COMPARED.append(what)
    assert not found.diverges, f"{what}: {found}"
    assert found.outcome == "within the noise floor"
    assert {row.role for row in found.layers} == {"clean"}


@pytest.mark.parametrize("name", NAMES)
def test_other_dtypes_attention_and_threads(name: str) -> None:
    model, inputs = model_of(name)
    reference = ns.trace(model, inputs, checkpoint="one")
    for what, other in suspects(model):
        assert_healthy(ns.compare(reference, ns.trace(other, inputs, checkpoint="one", floor=False)), f"{name} {what}")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2 if threads == 1 else 1)
        assert_healthy(ns.compare(reference, ns.trace(model, inputs, checkpoint="one", floor=False)), f"{name} threads")
    finally:
        torch.set_num_threads(threads)
    narrow = copy.deepcopy(model).bfloat16()
    turned = ns.trace(narrow, inputs, checkpoint="one")
    assert_healthy(ns.compare(turned, reference), f"{name} the other way round")


@pytest.mark.parametrize("device", HONEST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_honest_emulated_devices(device: str, dtype: torch.dtype) -> None:
    for name in ("llama", "gpt2"):
        model, _ = fixture(name)
        model = model.to(dtype)
        ids = torch.randint(3, 500, (2, 24), generator=torch.Generator().manual_seed(2))
        reference = ns.trace(model, ids, inputs=True)
        suspect = ns.trace(model, inputs_from=reference, floor=False, emulate=device)
        assert_healthy(ns.compare(reference, suspect), f"{name} {device} {dtype}")
