"""What a precision plan says in words, the same in every format.

`name` is how a text that is not ours is written where it goes: as it is, or made inert.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ..figures import Interval, number, plural, share
from ..layers import label
from ..rows import Sections

__all__ = ["against", "agreement", "headline", "mixture", "remarks"]

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
    told = (
        f"The map of {number(len(sections['weights']))} weights x {number(len(sections['asked']['formats']))} formats "
        f"agrees with running them: Spearman {rank} over {cells} checked cells, predicted/measured "
        f"{number(found['ratio'])}."
    )
    if not found["failed"]:
        return told
    failed = ", ".join(map(name, found["failed"]))
    return f"{told} Second order fails for {failed}: these are planned with what was measured."


def remarks(sections: Sections) -> list[str]:
    """What else has to be said."""
    found = []
    if gap := sections["plan"]["gap"]:
        found.append(f"The time for the programme ended with a proven gap of {share(gap)}.")
    far = [row for row in sections["map"]["checks"] if row["off"]]
    found += [
        f"{label(row['layer'])} in {row['format']}: predicted {Interval.of(row['predicted'])}, measured "
        f"{Interval.of(row['measured'])}."
        for row in far
    ]
    return found
