"""The summary on a terminal: what is fragile, what to do, and how far the figures can be trusted.

Risk: MODERATE (score 55)   38 forward passes

 where it is fragile       KL, nats/token        accuracy lost       severity
 1  head                   0.460 [0.440, 0.480]  21.2% [18.3, 24.1]  CRITICAL
...
"""

from collections.abc import Sequence

from .escaping import short, visible
from .figures import in_ascii, number
from .rows import Place, Sections, advice, fragile, layer_scale, next_steps
from .sentences import channels, critical_noise, trust

__all__ = ["columns", "summarise"]

SHOWN = 8


def summarise(sections: Sections, *, most: int | None = SHOWN) -> str:
    """A dozen lines or two, from the sections of a report; of each list the first `most`, or with None all.

    Nothing in it acts on a terminal, whatever the names.
    """
    parts = [
        _headline(sections),
        _fragile(sections, most),
        "\n".join(trust(sections, short)),
        critical_noise(sections, short, most=most and 3),
        channels(sections, short),
        _advice(sections, most),
        _next(sections),
    ]
    return in_ascii("\n\n".join(filter(None, parts)))


def columns(lines: Sequence[Sequence[str]], *, before: str = "") -> str:
    """Lines of a table, their cells one below the other."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join((before + "  ".join(map(str.ljust, line, widths))).rstrip() for line in lines)


def _headline(sections: Sections) -> str:
    summary, passes = sections["executive_summary"], number(sections["cost"]["forward_pass_equivalents"])
    risk = f"{short(summary['overall_risk_level'])} (score {number(summary['risk_score'])})"
    return f"Risk: {risk}   {passes} forward passes"


def _fragile(sections: Sections, most: int | None) -> str:
    rows = fragile(sections)
    if not rows:
        return ""
    scale, of_layers = sections["config"]["noise_scale"], layer_scale(sections)
    noise = f"noise {scale:g}" + (f", of layers {of_layers:g}" if of_layers != scale else "")
    head = ("", f"where it is fragile ({noise})", "KL, nats/token", "accuracy lost", "severity")
    return columns([head, *(_line(at, row) for at, row in enumerate(rows[:most], 1))], before=" ")


def _line(at: int, row: Place) -> tuple[str, ...]:
    more = f"  ({number(row.amplification.value)}x its layers)" if row.amplification.finite else ""
    severity = f"FAILED: {short(row.failed)}" if row.failed else short(row.severity)
    return str(at), short(row.name) + more, str(row.kl), row.lost.percent, severity


def _advice(sections: Sections, most: int | None) -> str:
    lines = [
        f"[{short(row.priority)}] {short(row.component)}: {short(row.action)} ({short(row.issue)})"
        for row in advice(sections)[:most]
    ]
    return "\n ".join(["what to do", *lines]) if lines else ""


def _next(sections: Sections) -> str:
    lines = [f"{visible(command, longest=1000)}  # {short(why)}" for command, why in next_steps(sections)]
    return "\n ".join(["next", *lines]) if lines else ""
