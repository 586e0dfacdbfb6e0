from collections import Counter
from itertools import count

from noisescope.measure.choosing import choose, first


def same(value: int) -> int:
    return value


def test_the_choice_is_ordered_distinct_and_decided_by_the_seed() -> None:
    chosen = choose(range(1000), 50, seed=0, make=same)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 50
    assert chosen == choose(iter(range(1000)), 50, seed=0, make=same)
    assert chosen != choose(range(1000), 50, seed=1, make=same)


def test_a_smaller_choice_is_part_of_a_larger_one() -> None:
    assert set(choose(range(1000), 20, seed=3, make=same)) < set(choose(range(1000), 60, seed=3, make=same))


def test_every_candidate_is_as_likely_as_another() -> None:
    counts = Counter(index for seed in range(400) for index in choose(range(20), 5, seed=seed, make=same))
    assert len(counts) == 20
    assert all(60 < n < 140 for n in counts.values())  # 100 expected, standard deviation 8.7


def test_it_is_spread_over_all_of_them() -> None:
    chosen = choose(range(1000), 50, seed=0, make=same)
    assert all(any(low <= index < low + 250 for index in chosen) for low in range(0, 1000, 250))


def test_candidates_that_make_nothing_do_not_count() -> None:
    odd = choose(range(100), 50, seed=0, make=lambda index: index if index % 2 else None)
    assert odd == list(range(1, 100, 2))


def test_few_candidates_are_made() -> None:
    made = []
    choose(range(10_000), 10, seed=0, make=lambda index: made.append(index) or index)
    assert len(made) < 200  # 10 * (1 + log(1000)) = 79 expected


def test_the_first_of_what_has_no_end() -> None:
    assert first(count(), 3, make=lambda index: index if index % 2 else None) == [1, 3, 5]
