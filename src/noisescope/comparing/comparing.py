"""compare(): two traces, site by site: what differs, where it began, and which layer is to blame.

>>> found = compare("gpu.trace", "npu.trace")          # doctest: +SKIP
>>> found.first.site.name, found.sources               # doctest: +SKIP
"""

from pathlib import Path

from ..errors import InputError
from ..report import Report
from ..traces import Trace, load_trace
from .blaming import blame
from .comparison import Comparison
from .judging import Yardstick, devices_alike, find_first, judge_all
from .names import Names, renamed
from .pairing import differences, pair_up, refuse
from .ranking import rank_repairs
from .sections import sections_of

__all__ = ["compare", "compare_traces", "opened"]


def compare(
    reference: Trace | str | Path,
    suspect: Trace | str | Path,
    *,
    names: Names | None = None,
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
    return compare_traces(a, renamed(b, names) if names else b, renamed=bool(names), report=report, fed=fed)


def compare_traces(a: Trace, b: Trace, *, renamed: bool, report: Report | None, fed: bool) -> Comparison:
    """The same of two traces in memory; `renamed` says that the names of one have been made those of the other."""
    refuse(a, b, renamed=renamed)
    pairing = pair_up(a, b)
    if not pairing.pairs:
        raise InputError(_nothing_in_common(a, b))
    yardstick = Yardstick.of(a, b)
    free = judge_all(pairing.pairs, a, b, yardstick)
    fits = b.head.inputs_from == a.digest
    own = judge_all(pair_up(a, b, run="fed").pairs, a, b, yardstick, fed=True) if fed and fits else ()
    alike = devices_alike(own, a, b)
    first = find_first(free, alike=alike)
    layers = blame(free, own, first, alike=alike)
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
        fed_by_another=fed and b.head.inputs_from is not None and not fits,
    )
    return Comparison(a, b, free, own, first, layers, sections)


def opened(trace: Trace | str | Path) -> Trace:
    """A trace, read from its file if it is the name of one."""
    return trace if isinstance(trace, Trace) else load_trace(trace)


def _nothing_in_common(a: Trace, b: Trace) -> str:
    told = f"{a.name or 'the first trace'} and {b.name or 'the second'}: have no site in common"
    if a.head.outputs_only != b.head.outputs_only:
        return (
            f"{told}, one holds logits alone; `noisescope locate --method fingerprint --reference` takes such a trace"
        )
    return told
