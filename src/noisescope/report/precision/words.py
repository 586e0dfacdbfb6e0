"""What a precision plan says in words, the same in every format.

`name` is how a text that is not ours is written where it goes: as it is, or made inert.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import TypeAlias

from ..figures import Interval, number, plural, share
from ..layers import label
from ..rows import Sections

__all__ = ["against", "agreement", "headline", "mixture", "refinement", "remarks"]

Name: TypeAlias = Callable[[str], str]


def headline(sections: Sections) -> str:
    """What the plan costs, in bits and in nats."""
    plan, kl = sections["plan"], Interval.of(sections["verified"][0]["kl"])
    kept = f", {plural(len(plan['kept']), 'weight')} kept" if plan["kept"] else ""
    return f"{number(plan['bits'])} bits on average{kept}: KL {kl} nats per token, measured."


def against(sections: Sections, name: Name = str) -> str:
    """The plan beside the best of the others, both measured."""
    plan, *others = sections["verified"]
    single = [row for row in others if row["name"].startswith("all ")]
    if not single:
        return "No single format fits into these bits."
    best = min(single, key=lambda row: row["kl"]["value"])
    if not best["kl"]["value"] or not plan["kl"]["value"] < float("inf"):
        return ""
    ratio = plan["kl"]["value"] / best["kl"]["value"]
    form = f"{name(best['name'].removeprefix('all '))} ({number(best['bits'])} bits)"
    return f"That is {share(ratio)} of the KL of the best single format within them, {form}."


def mixture(sections: Sections, name: Name = str) -> str:
    """How many weights are in which format."""
    counts: Mapping[str, int] = sections["plan"]["counts"]
    return ", ".join(f"{name(form)} {count}" for form, count in counts.items())


def agreement(sections: Sections, name: Name = str) -> str:
    """Whether the map could be trusted."""
    found = sections["map"]
    rank, cells = Interval.of(found["spearman"]), len(found["checks"])
    figures = [f"Spearman {rank}"] if rank.finite else []
    figures += [f"predicted/measured {number(found['ratio'])}"] if isfinite(found["ratio"]) else []
    told = (
        f"The map of {number(len(sections['weights']))} weights x {number(len(sections['asked']['formats']))} formats "
        f"beside {plural(cells, 'cell')} that were run: {', '.join(figures) or 'none of them changed anything'}."
    )
    if not found["failed"]:
        return told
    failed = ", ".join(map(name, found["failed"]))
    return f"{told} Second order fails for {failed}: these are planned with what was measured."


def refinement(sections: Sections) -> str:
    """What the steps after the programme came to; nothing if there were none."""
    found = sections.get("refined")
    if not found or not found["steps"]:
        return ""
    taken = [step for step in found["steps"] if step["taken"]]
    tried = f"{plural(len(found['steps']), 'step')} tried, {len(taken) or 'none'} taken"
    if not taken:
        return f"Refined: {tried}; the programme's choice stands."
    before, after = found["from"]["value"], taken[-1]["kl"]["value"]
    return (
        f"Refined: {tried}; KL {number(before)} to {number(after)} on the {found['rows']} rows that they were run on."
    )


def remarks(sections: Sections) -> list[str]:
    """What else has to be said."""
    found = []
    if out := sections["plan"].get("left_out"):
        more = f" and {number(len(out) - 1)} more" if len(out) > 1 else ""
        found.append(f"Left as they are, as the model does not call their modules: {out[0]}{more}.")
    if gap := sections["plan"]["gap"]:
        found.append(f"The time for the programme ended with a proven gap of {share(gap)}.")
    far = [row for row in sections["map"]["checks"] if row["off"]]
    found += [
        f"{label(row['layer'])} in {row['format']}: predicted {Interval.of(row['predicted'])}, measured "
        f"{Interval.of(row['measured'])}."
        for row in far
    ]
    return found
