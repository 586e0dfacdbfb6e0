"""A plan, moved to where it is better: by its own slopes, in small steps, each of them run before it is taken.

The map foretells each layer by itself, and layers add up only nearly: errors of one are met again by the next. At a
plan the slopes of the KL know of that (`quantising.slopes`). Around it, with a the error of the format that a group
has and e that of another,

    cost[group, e] = <G, e - a> + 1/2 (e - a)' F (e - a),        0 for what it has,

holds as long as few groups change at once. So the programme is solved again with a limit on how many do; what it finds
is run on other text, and taken if its KL is less there by more than the standard error of that. If not, half as many
may change. It ends where nothing is foretold to be worth it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...measure.intervals import Estimate
from ...points import Bench
from ...quantising.checking import run_in
from ...quantising.slopes import Slopes, slopes_at
from .choosing import Candidates, Chosen
from .programme import Near, Option

__all__ = ["PASSES", "RUNS", "Refined", "Step", "refine"]

PASSES = 4
"""of gradients, at most: one a plan that was taken"""
RUNS = 10
"""of plans, at most"""
WORTH = 2e-3
"""share of the KL that a step must be foretold to save"""
FIRST = 0.25
"""share of the groups that may change in the first step"""


@dataclass(frozen=True)
class Step:
    """A plan that was tried."""

    changed: int
    """groups"""
    predicted: float
    """change of the KL, in nats per token"""
    measured: Estimate | None
    """the KL, on the rows that steps are run on; None where the output is not finite"""
    taken: bool


@dataclass(frozen=True)
class Refined:
    """What the steps came to."""

    start: Estimate | None
    """the KL that was begun with, on the rows that steps are run on; None where the output is not finite"""
    steps: tuple[Step, ...]
    chosen: Chosen
    cost: float
    """of the gradients, in forward passes over these rows; runs are booked on the bench"""


def refine(
    candidates: Candidates,
    chosen: Chosen,
    avg_bits: float,
    *,
    sloped: Bench,
    stepped: Bench,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> Refined:
    """The plan after steps that made it better, within the same bits.

    Slopes are those on the rows of one bench, steps are judged on the rows of the other: what fits the first by chance
    does not fit the second.
    """
    at = start = run_in(stepped, chosen.formats, seed=seed)
    steps, passes = list[Step](), 0
    around: _Around | None = None
    most = max(2, round(FIRST * len(candidates.groups)))
    while at is not None and most and len(steps) < RUNS:
        if around is None:
            if passes == PASSES:
                break
            passes += 1
            around = _Around.of(candidates, chosen, slopes_at(sloped, candidates.formats, chosen.formats, seed=seed))
        new, predicted = around.best(avg_bits, most)
        if not (changed := around.changed(new)) or predicted > -WORTH * at.kl.value:
            break
        run = run_in(stepped, new.formats, seed=seed)
        taken = run is not None and _better(run.kl_above(at))
        steps.append(Step(changed, predicted, None if run is None else run.kl, taken))
        progress()
        if taken:
            chosen, at, around = new, run, None
        else:
            most = min(most, changed) // 2
    return Refined(None if start is None else start.kl, tuple(steps), chosen, passes * Slopes.cost)


def _better(above: Estimate) -> bool:
    return above.value < -above.stderr


@dataclass(frozen=True)
class _Around:
    """What it costs to leave a plan, group by group."""

    candidates: Candidates
    plan: Mapping[str, str]
    """group -> format"""
    options: Mapping[str, list[Option]]

    @classmethod
    def of(cls, candidates: Candidates, at: Chosen, slopes: Slopes) -> "_Around":
        plan = {group: at.formats[paths[0]] for group, paths in candidates.groups.items()}
        known = candidates.known.map

        def cost(group: str, name: str) -> float:
            paths, has = candidates.groups[group], plan[group]
            return slopes.of(paths, name) - slopes.of(paths, has) + known.apart(paths, name, has)

        options = {
            group: [Option(option.format, option.bits, cost(group, option.format)) for option in given]
            for group, given in candidates.options.items()
        }
        return cls(candidates, plan, options)

    def best(self, avg_bits: float, changes: int) -> tuple[Chosen, float]:
        """The plan of least KL with so many changes, and how much less that is."""
        found = self.candidates.solved(self.options, avg_bits, near=Near(self.plan, changes))
        return self.candidates.given(found.formats), found.kl

    def changed(self, new: Chosen) -> int:
        return sum(new.formats[self.candidates.groups[group][0]] != has for group, has in self.plan.items())
