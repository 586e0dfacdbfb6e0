"""P27: number formats are those of independent libraries, for every pattern of 16 bits; what would break them is seen.

`tests/unit/noise/formats` has every number, every half and every size of scale.
"""

from collections.abc import Callable

import pytest
import torch

import format_oracles
from noisescope.keys import Key
from noisescope.noise.formats import FORMATS, grids, parse_format, scales
from noisescope.noise.formats.grids import Grid
from noisescope.noise.formats.scales import Blocks, Scaled


def patterns() -> torch.Tensor:
    """All finite numbers of 16 bits, of both kinds, that a block scale can hold apart."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    both = torch.cat([every.view(torch.bfloat16).float(), every.view(torch.float16).float()])
    return both[both.isfinite()]


def check_elements() -> None:
    values = patterns()
    for name in format_oracles.ELEMENTS:
        grid: Grid = getattr(grids, name)
        theirs = format_oracles.elements(name, values)
        if grid.saturates:
            theirs = torch.where(theirs.isfinite(), theirs, values.sign() * grid.highest)
        assert torch.equal(grid.nearest(values.clone()), theirs), name


def check_blocks() -> None:
    value = torch.randn(16, 256, generator=torch.Generator().manual_seed(0)) * 1e-3
    value[0, :64] = torch.arange(64) / 32  # halves
    for name in FORMATS:
        assert torch.equal(parse_format(name).round(value), format_oracles.usual(name, value)), name


def check_stochastic() -> None:
    value = torch.linspace(-4, 4, 1001)
    for name in ("E2M1", "E4M3", "INT4"):
        grid: Grid = getattr(grids, name)
        comb = torch.stack([grid.stochastic(value.clone(), torch.full_like(value, (i + 0.5) / 64)) for i in range(64)])
        assert torch.allclose(comb.mean(0), value, atol=2 * float(grid.highest) / 64 / 4), name


def check_along_the_reduction_axis() -> None:
    value = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    value[:, 3] *= 100
    for name in ("mxfp4", "nvfp4", "int4"):
        form = parse_format(name)
        assert torch.equal(form.round(value.T, axis=0).T, form.round(value)), name


CHECKS = [check_elements, check_blocks, check_stochastic, check_along_the_reduction_axis]


@pytest.mark.parametrize("check", CHECKS)
def test_formats_are_those_of_others(check: Callable[[], None]) -> None:
    check()


# --- able to fail -----------------------------------------------------------------------------------------------


def halves_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def nearest(self: Grid, value: torch.Tensor, zero: torch.Tensor | None = None) -> torch.Tensor:
        step = self._steps(value)
        step = torch.ones_like(value) if step is None else step
        return self._bounded((value / step + 0.5).floor().mul(step), zero)

    monkeypatch.setattr(Grid, "nearest", nearest)
    return check_elements


def no_scale_of_the_tensor(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def one_level(blocks: Blocks) -> Scaled:
        scale = grids.E4M3.nearest(blocks.largest() / blocks.grid.highest).clamp(min=2.0**-9)
        return Scaled(blocks.rows / scale, scale)

    monkeypatch.setitem(scales.RULES, "two levels", one_level)
    return check_blocks


def half_of_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    real = Grid.stochastic
    monkeypatch.setattr(
        Grid, "stochastic", lambda self, value, uniform, zero=None: real(self, value, uniform / 2, zero)
    )
    return check_stochastic


def blocks_along_the_last_axis(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    real = type(parse_format("mxfp4")).round
    monkeypatch.setattr(
        type(parse_format("mxfp4")), "round", lambda self, value, axis=-1, key=None: real(self, value, key=key)
    )
    return check_along_the_reduction_axis


def a_scale_that_rounds_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    real = scales.RULES["shared"]

    def larger(blocks: Blocks) -> Scaled:
        found = real(blocks)
        return Scaled(found.values / 2, found.scale * 2)

    monkeypatch.setitem(scales.RULES, "shared", larger)
    return check_blocks


@pytest.mark.parametrize(
    "mutant",
    [halves_up, no_scale_of_the_tensor, half_of_what_is_drawn, blocks_along_the_last_axis, a_scale_that_rounds_up],
)
def test_the_mutants_are_caught(mutant: Callable[..., Callable[[], None]], monkeypatch: pytest.MonkeyPatch) -> None:
    check = mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def test_a_key_decides_what_is_drawn() -> None:
    form, value = parse_format("nvfp4:stochastic"), torch.randn(4, 64)
    assert torch.equal(form.round(value, key=Key(1, "w")), form.round(value, key=Key(1, "w")))
