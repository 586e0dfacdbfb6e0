"""Honest devices: other dtypes, attention, threads, orders of summation. No divergence beyond the noise floor.

With fixtures, families and settings below there are more than a hundred comparisons (`-m slow`; half of them by
default) and no false alarm, so that the rate is below 3%; `benchmarks/compare` has more.
"""

import copy
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice

import pytest
import torch
from torch import nn

import noisescope as ns
from families import FAMILIES, build, tokens
from noisescope.comparing import Comparison
from noisescope.devices import DEVICES
from noisescope.traces import Trace
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
    if (other := eager(model)) is not None:
        yield "eager float32", other
    yield "float16", copy.deepcopy(model).half()
    if (other := eager(copy.deepcopy(model).bfloat16())) is not None:
        yield "eager bfloat16", other


def assert_healthy(found: Comparison, what: str) -> None:
    COMPARED.append(what)
    assert not found.diverges, f"{what}: {found}"
    assert found.outcome == "within the noise floor"
    assert {row.role for row in found.layers} == {"clean"}


def comparisons(name: str) -> Iterator[tuple[str, Callable[[], Comparison]]]:
    """What is compared, and how."""
    model, inputs = model_of(name)

    def traced(other: nn.Module, *, floor: bool = False) -> Trace:
        return ns.trace(other, inputs, checkpoint="one", floor=floor)

    reference = traced(model, floor=True)
    for what, other in suspects(model):
        yield what, lambda other=other: ns.compare(reference, traced(other))
    yield "threads", lambda: ns.compare(reference, with_other_threads(lambda: traced(model)))
    yield (
        "the other way round",
        lambda: ns.compare(traced(copy.deepcopy(model).bfloat16(), floor=True), reference),
    )


def with_other_threads(run: Callable[[], Trace]) -> Trace:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2 if threads == 1 else 1)
        return run()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("at", "name"), list(enumerate(NAMES)), ids=NAMES)
def test_some_other_dtypes_attention_and_threads(at: int, name: str) -> None:
    """Two comparisons of each, others of the next."""
    for what, compared in islice(comparisons(name), at % 3 * 2, at % 3 * 2 + 2):
        assert_healthy(compared(), f"{name} {what}")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_other_dtypes_attention_and_threads(name: str) -> None:
    for what, compared in comparisons(name):
        assert_healthy(compared(), f"{name} {what}")


@cache
def reference_of(name: str, dtype: torch.dtype) -> tuple[nn.Module, Trace]:
    model = fixture(name)[0].to(dtype)
    ids = torch.randint(3, 500, (2, 24), generator=torch.Generator().manual_seed(2))
    return model, ns.trace(model, ids, inputs=True)


@pytest.mark.parametrize("device", HONEST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_honest_emulated_devices(device: str, dtype: torch.dtype) -> None:
    for name in ("llama", "gpt2"):
        model, reference = reference_of(name, dtype)
        suspect = ns.trace(model, inputs_from=reference, floor=False, emulate=device)
        assert_healthy(ns.compare(reference, suspect), f"{name} {device} {dtype}")
