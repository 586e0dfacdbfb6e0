"""What a comparison says in words, the same in every format.

`name` is how a text that is not ours is written where it goes: as it is, or made inert.
"""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import TypeAlias

from ..figures import number, plural
from ..layers import runs_of
from ..rows import Sections
from .sites import Row, how_far, label, place, site_at, times, worst

__all__ = ["advice", "blame", "headline", "layer_word", "outcome", "sides", "subject"]

Name: TypeAlias = Callable[[str], str]


# --- the verdict ------------------------------------------------------------------------------------------------


def outcome(sections: Sections) -> str:
    """DIVERGES, WITHIN THE NOISE FLOOR or INCONCLUSIVE."""
    return str(sections["verdict"]["outcome"]).upper()


def headline(sections: Sections, name: Name = str) -> str:
    """The verdict in a sentence."""
    found, sites = sections["verdict"], sections["sites"]
    if found["outcome"] == "inconclusive":
        return "It cannot be told: there is no noise floor in the reference to judge by."
    if found["outcome"] != "diverges":
        return _within(found, sites, name)
    first = site_at(sections, found["first"], found["stage"])
    if first is None:
        return f"The suspect diverges at {name(str(found['first']))}."
    later = ""
    if not first["beyond"] and (beyond := next((site for site in sites if site["beyond"]), None)):
        later = f"; it has grown beyond what is tolerated at {name(place(beyond))}"
    return f"The suspect diverges from {name(place(first))} on: {how_far(first)}{later}."


def blame(sections: Sections, name: Name = str) -> str:
    """Which layers add errors of their own; nothing where nothing diverges."""
    found = sections["verdict"]
    if found["outcome"] != "diverges":
        return ""
    if not found["fed"]:
        return "Layers after it are not told apart: each may add to the error, or only carry it."
    listed = ", ".join(runs_of(found["sources"], name))
    if len(found["sources"]) == 1:
        return f"Of all layers, {listed} alone adds an error of its own; the others carry what they inherit."
    most = _most(sections["layers"])
    largest = f", {name(label(most['layer']))} the largest ({number(most['added'])})" if most is not None else ""
    count = f"{len(found['sources'])} layers add errors of their own"
    return f"{count}{largest}: {listed}. The others carry what they inherit."


def _most(layers: Sequence[Row]) -> Row | None:
    """The source that adds the largest error, if that is known of one."""
    known = [row for row in layers if row["role"] == "source" and row["added"] is not None and isfinite(row["added"])]
    return max(known, key=lambda row: float(row["added"]), default=None)


def advice(sections: Sections) -> str:
    """What to do for a better answer; nothing where there is none."""
    found = sections["verdict"]
    if found["outcome"] == "inconclusive":
        return "Record the reference without --no-floor."
    if found["outcome"] != "diverges" or not sections["layers"]:
        return ""
    if found["phase"] == "backward":
        return "Gradients cannot be fed, so sources and amplifiers among the layers are not told apart."
    if found["fed_by_another"]:
        return "The suspect was fed by another trace; with --inputs-from this one, sources are told from amplifiers."
    if not found["fed"]:
        return "Record the suspect with --inputs-from the reference to tell sources from amplifiers."
    return ""


def layer_word(sections: Sections, row: Row) -> str:
    """The verdict on a layer; without a floor there is none."""
    return "not judged" if sections["verdict"]["outcome"] == "inconclusive" else str(row["word"])


def _within(found: Row, sites: Sequence[Row], name: Name) -> str:
    if not found["first_in_bits"]:
        return "No divergence: all bits are equal."
    most = next((site for site in worst(sites) if site["tolerance"] is not None), None)
    far = f": at most {times(most)}, at {name(place(most))}" if most is not None else ""
    return f"No divergence beyond the noise floor{far}."


# --- what was compared ------------------------------------------------------------------------------------------


def subject(sections: Sections, name: Name = str) -> Iterator[tuple[str, str]]:
    """What was compared with what: pairs of what and how much."""
    for side, trace in sections["traces"].items():
        file = f"{name(trace['file'])}: " if trace["file"] else ""
        yield side, file + _where(trace["environment"], name)
    yield "differs", ", ".join(_changed(row, name) for row in sections["differences"]) or "nothing that is known"
    reference = sections["traces"]["reference"]
    where = f"{plural(len(sections['sites']), 'site')} in {plural(reference['layers'], 'layer')}"
    yield "compared", f"{where}, {plural(reference['tokens'], 'token')} ({name(reference['data'])})"
    if floor := sections["floor"]:
        factor = number(int(floor["factor"]) if floor["factor"] in range(1000) else floor["factor"])
        noise = f"{factor} times what noise of one unit in the last place ({number(floor['unit'])}) does"
        yield "tolerated", f"{noise}, measured on {plural(floor['tokens'], 'token')}"


def sides(row: Row) -> tuple[str, str]:
    """What a field is in the reference and in the suspect."""
    return _said(row["reference"]), _said(row["suspect"])


def _changed(row: Row, name: Name) -> str:
    mine, other = sides(row)
    return f"{name(row['field'])} ({name(mine)} \N{RIGHTWARDS ARROW} {name(other)})"


def _where(environment: Row, name: Name) -> str:
    told = f"{name(str(environment['dtype']))} on {name(str(environment['device']))}"
    return f"{told}, {name(str(environment['attention']))}" if environment.get("attention") else told


def _said(found: object) -> str:
    return "none" if found is None or found in ("", []) else str(found)
