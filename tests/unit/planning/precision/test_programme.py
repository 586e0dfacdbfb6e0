"""The integer programme against trying everything."""

from itertools import product

import numpy as np
import pytest

from noisescope.errors import InputError
from noisescope.planning.precision.programme import GAP, Option, solve


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


def test_too_few_bits_are_refused() -> None:
    with pytest.raises(InputError, match="these formats need"):
        solve(drawn(0, 3, 3), most_bits=10.0)
