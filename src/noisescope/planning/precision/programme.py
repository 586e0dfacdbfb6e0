"""The integer programme: one format for each group of weights, the least predicted KL within so many bits.

    minimise    sum over groups of cost[group, its format]
    subject to  sum over groups of bits[group, its format] <= average bits x weights,
                one format a group
                (optionally) at most so many groups other than in a given choice

solved to a proven gap of 1e-4 by HiGHS, as scipy has it: the choice is the best there is, to a ten-thousandth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ...errors import InputError
from .quiet import quiet

__all__ = ["GAP", "Near", "Option", "Solution", "solve"]

GAP = 1e-4
SECONDS = 60.0
"""after which the best choice so far is taken, with the gap that it has"""


@dataclass(frozen=True)
class Option:
    """One format at one group."""

    format: str
    bits: float
    """of all weights of the group, scales counted"""
    cost: float
    """predicted KL"""


@dataclass(frozen=True)
class Near:
    """A limit: at most so many groups may differ from a choice."""

    choice: Mapping[str, str]
    """group -> format"""
    changes: int


@dataclass(frozen=True)
class Solution:
    """A choice of formats."""

    choice: Mapping[str, str]
    """group -> format"""
    cost: float
    bits: float
    gap: float
    """share by which the cost may be above the least there is"""


def solve(options: Mapping[str, Sequence[Option]], *, most_bits: float, near: Near | None = None) -> Solution:
    """The options of least cost within so many bits; an error says how few there can be."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    listed = [(group, option) for group, given in options.items() for option in _worth(given, group, near)]
    fewest = sum(min((option.bits for option in given), default=inf) for given in options.values())
    if fewest > most_bits * (1 + 1e-12):
        raise InputError(f"got {most_bits:g} bits in all, but these formats need {fewest:g}")
    cost = np.array([option.cost for _, option in listed])
    bits = np.array([option.bits for _, option in listed])
    number = {group: row for row, group in enumerate(options)}
    rows = np.array([number[group] for group, _ in listed])
    one_each = csr_array((np.ones(len(listed)), (rows, np.arange(len(listed)))), shape=(len(options), len(listed)))
    limits = [LinearConstraint(one_each, 1, 1), LinearConstraint(bits[None, :] / most_bits, -inf, 1.0 + 1e-12)]
    if near is not None:
        changes = [float(near.choice[group] != option.format) for group, option in listed]
        limits.append(LinearConstraint(np.array([changes]), 0, near.changes))
    unit = max(float(np.abs(cost).max()), np.finfo(float).tiny)  # nats are small numbers, and a solver's zero is 1e-7
    with quiet():
        found = milp(
            cost / unit,
            integrality=np.ones(len(listed)),
            bounds=Bounds(0, 1),
            constraints=limits,
            options={"mip_rel_gap": GAP, "time_limit": SECONDS},
        )
    if found.x is None:
        raise InputError(f"no choice of formats was found within {SECONDS:g} s; use fewer formats ({found.message})")
    taken = [listed[place] for place in np.flatnonzero(found.x > 0.5)]
    choice = {group: option.format for group, option in taken}
    return Solution(
        choice,
        sum(option.cost for _, option in taken),
        sum(option.bits for _, option in taken),
        float(found.mip_gap or 0.0),
    )


def _worth(options: Sequence[Option], group: str, near: Near | None) -> list[Option]:
    """Without those of infinite cost, and without those that another is better than in bits and in cost."""
    finite = [option for option in options if option.cost < inf]
    if not finite:
        raise InputError(f"{group}: no format of these gives finite numbers there; add one such as bf16")
    return finite if near is not None else _undominated(finite)


def _undominated(options: Sequence[Option]) -> list[Option]:
    """Without those that cost no less for no fewer bits than another: they are never chosen."""
    found: list[Option] = []
    for option in sorted(options, key=lambda option: (option.bits, option.cost)):
        if not found or option.cost < found[-1].cost:
            found.append(option)
    return found
