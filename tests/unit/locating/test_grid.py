"""Faults of every kind at every position of the fixtures: named, at the right operator, and nobody else is blamed."""

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from grid import DOCUMENTED, NAMES, everywhere, model, run, score

from noisescope.faults import FAULTS
from noisescope.locating import locate
from noisescope.sites import Layout
from trained import NAMES as FIXTURES

OPERATORS = {
    "llama": ["linear", "matmul", "softmax", "silu", "rms_norm", "residual", "mul", "add", "attention"],
    "gpt2": ["linear", "matmul", "softmax", "gelu", "layer_norm", "residual", "attention"],
}
DTYPES = ["float32", "bfloat16"]
OUTSIDE = ["embed", "final_norm", "head"]
SHARES = {"magnitudes": [(1.0, 1.0), (0.1, 1.0), (0.01, 1.0)], "channels": [(1.0, 0.1), (1.0, 0.01), (1.0, 1e-9)]}


def layers(name: str) -> list[str]:
    return [str(layer) for layer in range(len(Layout.of(model(name, "float32")).blocks))]


def by_default(own: int, what: int, at: int, width: int) -> bool:
    """Every kind in both shares: in one fixture and dtype, and then in the others."""
    return (own, width) == ((at + what) % 2, (at // 2 + what) % 2)


OUTPUTS = [
    pytest.param(name, what, kind, dtype, marks=[] if by_default(own, share, at, width) else [pytest.mark.slow])
    for own, name in enumerate(FIXTURES)
    for share, what in enumerate(SHARES)
    for at, kind in enumerate(DOCUMENTED)
    for width, dtype in enumerate(DTYPES)
]


@pytest.mark.parametrize(("name", "what", "kind", "dtype"), OUTPUTS)
def test_faults_of_every_layers_output_are_named(name: str, what: str, kind: str, dtype: str) -> None:
    for share, sparsity in SHARES[what]:
        faults = everywhere(layers(name), kind, share * DOCUMENTED[kind], sparsity=sparsity)
        effective, named, _, wrong = score(run(name, dtype, faults, budget=6))
        assert named == effective, (share, sparsity)
        assert not wrong, (share, sparsity)


def settings(name: str, share: int) -> list[tuple[str, str]]:
    """Every operator with a share of the kinds that it can have, drawn once; all of them are in benchmarks/locate."""
    dice = random.Random(name)
    found = []
    for operator in [*OPERATORS[name], *OUTSIDE]:
        kinds = [kind for kind, row in FAULTS.items() if row.operators is None or operator in row.operators]
        found += [(operator, kind) for kind in dice.sample(kinds, k=-(-len(kinds) // share))]
    return found


def inside(name: str, operator: str, *, every: int = 1, first: int = 0) -> list[str]:
    """Sites of an operator: one outside the blocks, or one in each of these layers."""
    return [operator] if operator in OUTSIDE else [f"{layer}.{operator}" for layer in layers(name)[first::every]]


def assert_named(name: str, dtype: str, grid: Iterable[tuple[str, str, list[str]]]) -> None:
    """Faults of a kind at sites of an operator: all but a few are named, most by their kind, and nobody else is."""
    effective_all, named_all, kinds = 0, 0, Counter[bool]()
    for operator, kind, sites in grid:
        verdict = run(name, dtype, everywhere(sites, kind, FAULTS[kind].documented))
        effective, named, _, wrong = score(verdict)
        assert not wrong, (operator, kind)
        effective_all, named_all = effective_all + effective, named_all + named
        kinds.update(suspect.kind == NAMES[kind] for suspect in verdict.sites)
    assert named_all >= 0.98 * effective_all
    assert kinds[True] >= 0.9 * kinds.total()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FIXTURES)
def test_faults_inside_blocks_are_named_with_their_operator_and_kind(name: str, dtype: str) -> None:
    """Each setting in one of the dtypes, in layers of even numbers and of odd ones in turn."""
    some = list(enumerate(settings(name, 9)))[DTYPES.index(dtype) :: 2]
    assert_named(name, dtype, ((*row, inside(name, row[0], every=2, first=at // 2 % 2)) for at, row in some))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FIXTURES)
@pytest.mark.parametrize("share", [9, 3])
def test_faults_inside_all_blocks_are_named_with_their_operator_and_kind(share: int, name: str, dtype: str) -> None:
    assert_named(name, dtype, ((*row, inside(name, row[0])) for row in settings(name, share)))


def test_two_faults_of_different_kinds_are_both_named() -> None:
    verdict = run("llama", "float32", [*everywhere(["2.softmax"], "gain", 0.05), *everywhere(["5"], "saturation", 0.2)])
    assert {(s.layer, s.operator, s.kind) for s in verdict.sites} == {
        (2, "softmax", "gain"),
        (5, "residual", "clipping"),
    }


def test_an_inert_fault_is_counted_apart() -> None:
    verdict = locate(model("llama", "float32"), None, simulate="saturation:1e-30@3")
    assert verdict.healthy
    assert verdict.sections["truth"][0]["inert"]
