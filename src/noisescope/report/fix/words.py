"""What a minimal fix says in words, the same in every format."""

from collections.abc import Callable
from typing import TypeAlias

from ..figures import Interval, number, plural
from ..rows import Sections

__all__ = ["basis", "headline"]

Name: TypeAlias = Callable[[str], str]


def headline(sections: Sections, name: Name = str) -> str:
    """What has to be raised, and to what that leads."""
    low, high, target = name(sections["format"]), name(sections["raised_format"]), number(sections["max_kl"])
    if not sections["met"]:
        left = _found(sections, sections["groups"])
        return f"No: with all weights raised from {low} to {high} the KL is {left} nats per token, above {target}."
    count = len(sections["raised"])
    if not count:
        return f"Nothing: all weights in {low} are within {target} nats per token."
    return (
        f"Raise {number(count)} of {plural(sections['groups'], 'group')} of weights from {low} to {high}: KL "
        f"{_found(sections, count)} nats per token, within {target}."
    )


def basis(sections: Sections, name: Name = str) -> str:
    """Why not fewer, and what is not looked at."""
    data, count = sections["data"], len(sections["raised"])
    where = f"Ordered by a map of {data['rows']} rows of {name(data['name'])}, run on {data['held_out_rows']} others."
    if out := sections["left_out"]:
        more = f" and {number(len(out) - 1)} more" if len(out) > 1 else ""
        where += f" Left as they are, as the model does not call their modules: {name(out[0])}{more}."
    fewer = _found(sections, count - 1)
    return f"One fewer was run too: {fewer}. {where}" if sections["met"] and count and fewer else where


def _found(sections: Sections, count: int) -> str:
    return next((str(Interval.of(step["kl"])) for step in sections["steps"] if step["raised"] == count), "")
