"""compare(): two traces, site by site: what differs, where it began, and which layer is to blame.

>>> found = compare("gpu.trace", "npu.trace")          # doctest: +SKIP
>>> found.first.site.name, found.sources               # doctest: +SKIP
"""

from collections.abc import Mapping
from pathlib import Path

from ..errors import InputError
from ..report import Report
from ..traces import Trace, load_trace
from .blaming import blame
from .comparison import Comparison
from .judging import Judged, Yardstick, find_first, judge
from .names import Rename, read_names, renaming
from .pairing import Pairing, differences, pair_up, refuse
from .ranking import rank_repairs
from .sections import sections_of

__all__ = ["compare", "opened"]


def compare(
    reference: Trace | str | Path,
    suspect: Trace | str | Path,
    *,
    names: Mapping[str, str] | str | Path | None = None,
    report: Report | None = None,
    fed: bool = True,
) -> Comparison:
    """How a suspect's trace differs from the reference's, judged by the reference's noise floor.

    Args:
        reference: a trace or its file. Its floor says what a healthy device may show.
        suspect: of the same model and tokens. Made with `inputs_from=reference` it also tells sources from amplifiers.
        names: modules of the suspect -> what the reference calls them, or a JSON file of these (see `names`).
        report: a diagnosis of the model, to rank the sources by what they cost.
        fed: look at the suspect's run with the reference's inputs, if it has one.
    """
    a, b = opened(reference), opened(suspect)
    rename = _rename(names)
    refuse(a, b, renamed=rename is not None)
    yardstick = Yardstick.of(a, a, b)
    pairing = pair_up(a, b, rename=rename)
    if not pairing.pairs:
        raise InputError(f"{a.name or 'the first trace'} and {b.name or 'the second'}: have no site in common")
    free = _judged(pairing, a, b, yardstick)
    own = _fed(a, b, yardstick, rename) if fed else ()
    first = find_first(free, a, b)
    layers = blame(free, own, first, a, b)
    sections = sections_of(
        a,
        b,
        differences=differences(a, b),
        pairing=pairing,
        sites=free,
        fed=own,
        first=first,
        layers=layers,
        repairs=rank_repairs(layers, own, report, blocks=a.head.layers) if report is not None else (),
        unit=yardstick.unit if yardstick is not None else None,
    )
    return Comparison(a, b, free, own, first, layers, sections)


def opened(trace: Trace | str | Path) -> Trace:
    """A trace, read from its file if it is the name of one."""
    return trace if isinstance(trace, Trace) else load_trace(trace)


def _rename(names: Mapping[str, str] | str | Path | None) -> Rename | None:
    if not names and not isinstance(names, (str, Path)):
        return None
    return renaming(names) if isinstance(names, Mapping) else read_names(names)


def _judged(
    pairing: Pairing, a: Trace, b: Trace, yardstick: Yardstick | None, *, fed: bool = False
) -> tuple[Judged, ...]:
    return tuple(judge(pair, a, b, yardstick, fed=fed) for pair in pairing.pairs)


def _fed(a: Trace, b: Trace, yardstick: Yardstick | None, rename: Rename | None) -> tuple[Judged, ...]:
    """The fed run of the suspect, if it was fed by this reference."""
    if b.head.inputs_from is None:
        return ()
    if b.head.inputs_from != a.digest:
        raise InputError(
            f"{b.name or 'the second trace'}: was fed with the inputs of another trace than {a.name or 'the first'}; "
            "compare it with that one"
        )
    return _judged(pair_up(a, b, run="fed", rename=rename), a, b, yardstick, fed=True)
