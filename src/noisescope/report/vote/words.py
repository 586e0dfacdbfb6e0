"""What a vote says in words, the same in every format.

`name` is how a text that is not ours is written where it goes: as it is, or made inert.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ..figures import number, share
from ..rows import Sections

__all__ = ["advice", "headline", "outcome", "pair_word", "size"]

Name: TypeAlias = Callable[[str], str]


def outcome(sections: Sections) -> str:
    """ODD ONE OUT, ALL AGREE or CANNOT TELL."""
    return str(sections["outcome"]).upper()


def headline(sections: Sections, name: Name = str) -> str:
    """The answer in a sentence."""
    pairs, count = sections["pairs"], len(sections["traces"])
    if sections["outcome"] == "odd one out":
        told = f"{name(str(sections['odd']))} is the odd one out: it diverges from all others, and these agree"
        return f"{told} (confidence {share(sections['confidence'])})."
    if sections["outcome"] == "all agree":
        return f"All {count} agree within the noise floor."
    if any(pair["outcome"] == "inconclusive" for pair in pairs):
        return "It cannot be told: none of the traces has a noise floor to judge by."
    apart = sum(pair["outcome"] == "diverges" for pair in pairs)
    return f"It cannot be told: {apart} of {len(pairs)} pairs diverge, and no one trace explains it."


def advice(sections: Sections) -> str:
    """What to do for a better answer; nothing where there is none."""
    dtypes = {str(trace["environment"]["dtype"]) for trace in sections["traces"]}
    if sections["outcome"] != "cannot tell":
        return ""
    if any(pair["outcome"] == "inconclusive" for pair in sections["pairs"]):
        return "Record one of them without --no-floor."
    if len(dtypes) > 1:
        return "A trace in a coarse dtype agrees with small errors: vote among traces of one dtype."
    return "More than one of them is off: compare each with the one you trust most."


def pair_word(pair: Mapping[str, Any]) -> str:
    """What two of them are: alike, apart, or not judged."""
    return {"diverges": "diverge", "within the noise floor": "agree"}.get(pair["outcome"], "not judged")


def size(pair: Mapping[str, Any]) -> str:
    """The largest error in units of what is tolerated."""
    if pair["same_bits"]:
        return "bits equal"
    return "not finite" if pair["excess"] is None else f"{number(pair['excess'])}x"
