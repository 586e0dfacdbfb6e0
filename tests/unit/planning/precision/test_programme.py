"""The integer programme against trying everything."""

import ctypes
import sys
from itertools import product
from math import inf

import numpy as np
import pytest

from noisescope.errors import InputError
from noisescope.planning.precision.programme import GAP, Near, Option, solve
from noisescope.planning.precision.quiet import quiet


def drawn(seed: int, groups: int, formats: int) -> dict[str, list[Option]]:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 9, groups) * 1000.0
    bits = np.sort(draw.uniform(4, 16, formats))
    return {
        f"g{g}": [Option(f"f{f}", sizes[g] * bits[f], 10 ** draw.uniform(-9, -3)) for f in range(formats)]
        for g in range(groups)
    }


@pytest.mark.parametrize("seed", range(8))
def test_the_choice_is_the_best_of_all(seed: int) -> None:
    options = drawn(seed, groups=6, formats=4)
    fewest, most = (sum(end(o.bits for o in given) for given in options.values()) for end in (min, max))
    for share in (0.0, 0.2, 0.5, 1.0):
        limit = fewest + share * (most - fewest)
        every = [choice for choice in product(*options.values()) if sum(o.bits for o in choice) <= limit * (1 + 1e-12)]
        least = min(sum(o.cost for o in choice) for choice in every)
        found = solve(options, most_bits=limit)
        assert found.bits <= limit * (1 + 1e-9)
        assert least <= found.cost * (1 + 1e-12)
        assert found.cost <= least * (1 + GAP)
        assert found.cost == pytest.approx(
            sum(o.cost for group, given in options.items() for o in given if o.format == found.choice[group])
        )


def test_a_plan_of_the_default_models_size_is_solved_to_the_gap() -> None:
    options = drawn(0, groups=120, formats=6)
    fewest = sum(min(o.bits for o in given) for given in options.values())
    found = solve(options, most_bits=1.3 * fewest)
    assert found.gap <= GAP
    assert len(found.choice) == 120


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("changes", [0, 1, 3])
def test_near_a_choice_it_is_the_best_of_all_that_are_near(seed: int, changes: int) -> None:
    """Costs of leaving a choice have either sign; what it has costs nothing, even where another is better in both."""
    draw, options = np.random.default_rng(seed), drawn(seed, groups=6, formats=4)
    has = {group: given[int(draw.integers(4))].format for group, given in options.items()}
    options = {
        group: [Option(o.format, o.bits, 0.0 if o.format == has[group] else draw.normal()) for o in given]
        for group, given in options.items()
    }
    limit = sum(o.bits for group, given in options.items() for o in given if o.format == has[group])

    def near(choice) -> bool:
        apart = sum(o.format != has[group] for group, o in zip(options, choice, strict=True))
        return apart <= changes and sum(o.bits for o in choice) <= limit * (1 + 1e-12)

    least = min(sum(o.cost for o in choice) for choice in product(*options.values()) if near(choice))
    found = solve(options, most_bits=limit, near=Near(has, changes))
    assert found.cost == pytest.approx(least, rel=GAP, abs=1e-6)
    assert sum(found.choice[group] != name for group, name in has.items()) <= changes


def test_what_costs_infinitely_much_is_never_chosen() -> None:
    options = {"a": [Option("x", 4.0, inf), Option("y", 8.0, 1.0)], "b": [Option("x", 4.0, 2.0)]}
    assert solve(options, most_bits=12.0).choice == {"a": "y", "b": "x"}
    with pytest.raises(InputError, match="a: no format of these gives finite numbers"):
        solve({"a": [Option("x", 4.0, inf)]}, most_bits=12.0)


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    libc = ctypes.CDLL(None)
    sys.stdout.write("before\n")
    with quiet():
        libc.puts(b"from a compiled library")
    libc.puts(b"after")
    libc.fflush(None)
    assert capfd.readouterr().out == "before\nafter\n"


def test_too_few_bits_are_refused() -> None:
    with pytest.raises(InputError, match="these formats need"):
        solve(drawn(0, 3, 3), most_bits=10.0)
