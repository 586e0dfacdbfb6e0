"""Hooks of the documentation site: pages that are made from the code, so that they cannot go stale.

A page asks for a part with a comment on a line of its own, such as <!-- made by scripts/docs_pages.py: commands -->;
the parts are the functions of PARTS. Links to files of the repository outside docs/ become their paths, as text.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from noisescope import errors
from noisescope.cli import app
from noisescope.devices import DEVICES
from noisescope.devices.rows import FLOATS
from noisescope.faults import kinds
from noisescope.locating.host import rules
from noisescope.locating.identities import IDENTITIES
from noisescope.measure.readings import READINGS, Reading
from noisescope.noise.family import NOISES
from noisescope.operators import OPERATORS

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file alone
import docs_benchmarks
import docs_comparisons
import docs_training

ROOT = Path(__file__).parents[1]
MARKER = re.compile(r"^<!-- made by scripts/docs_pages.py: ([\w-]+) -->$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)\)")
WIDTH = 92
PICTURE = "pictures/report-light.png"
SCHEMA = "report.schema.json"

log = logging.getLogger("mkdocs.hooks.docs_pages")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for every page, before it becomes HTML."""
    filled = MARKER.sub(lambda asked: _part(asked[1], page.file.src_uri), markdown)
    here, docs = Path(page.file.abs_src_path).parent, Path(config["docs_dir"])
    return LINK.sub(lambda link: _outside(link, here, docs, page.file.src_uri), filled)


def _part(name: str, page: str) -> str:
    if name not in PARTS:
        log.warning('%s: asks for "%s", expected one of %s', page, name, " ".join(PARTS))
        return ""
    return PARTS[name]()


def _outside(link: re.Match[str], here: Path, docs: Path, page: str) -> str:
    """A link that leaves docs/ as text; any other as it is."""
    target = (here / link[2]).resolve()
    if target.is_relative_to(docs) or not target.is_relative_to(ROOT):
        return link[0]
    if not target.exists():
        log.warning("%s: links to %s, which does not exist", page, link[2])
    path = f"`{target.relative_to(ROOT)}`"
    return path if link[1].strip("`") in path else f"{link[1]} ({path})"


# --- parts ------------------------------------------------------------------------------------------------------------


def _commands() -> str:
    """What `--help` of every verb prints, with a heading each."""
    helped = _helps(typer.main.get_command(app), "noisescope")
    return "\n\n".join(f"## {name}\n\n```text\n{text.strip()}\n```" for name, text in helped)


def _helps(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, str]]:
    context = command.make_context(
        name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH
    )
    yield context.command_path, command.get_help(context)
    for verb, inner in getattr(command, "commands", {}).items():
        yield from _helps(inner, verb, context)


def _readings() -> str:
    """The one table of metrics and thresholds."""
    lines = ["| metric | formula | reading | where the thresholds come from |", "|---|---|---|---|"]
    return "\n".join([*lines, *map(_reading, READINGS.values())])


def _reading(row: Reading) -> str:
    unit = f" ({row.unit})" if row.unit else ""
    bands = "<br>".join(_cell(band.describe(row.unit)).replace(" ", "&nbsp;") for band in row.bands) or "no thresholds"
    source = _cell("; ".join(filter(None, (row.source, row.note))))
    return f"| {row.metric}{unit} | {_cell(row.formula)} | {bands} | {source} |"


def _cell(text: str) -> str:
    """Text that ends no column and opens no tag."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;").replace("*", "&#42;")


def _errors() -> str:
    """The tree of errors, as their module draws it."""
    tree = [line for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    return "```text\n" + "\n".join(line[4:] for line in tree) + "\n```"


def _faults() -> str:
    """The arithmetic of every kind of fault, as its module has it, and where those exist that are not everywhere."""
    table = _indented(kinds.__doc__)
    some = [f"`{kind.name}` at {', '.join(kind.operators)}" for kind in kinds.FAULTS.values() if kind.operators]
    return "```text\n" + "\n".join(table) + f"\n```\n\nThey exist at every operator, but {'; '.join(some)}."


def _devices() -> str:
    """Every emulated device, what it changes, and in which dtypes."""
    lines = ["| device | what it does | changes | of values in | honest |", "|---|---|---|---|---|"]
    for row in DEVICES.values():
        dtypes = (
            "any dtype" if row.dtypes == FLOATS else ", ".join(str(one).removeprefix("torch.") for one in row.dtypes)
        )
        functions = ", ".join(f"`{name}`" for name in row.functions) or "whatever is computed"
        honest = "yes" if row.honest else "less precise"
        lines.append(f"| `{row.name}` | {_cell(row.description)} | {functions} | {dtypes} | {honest} |")
    return "\n".join(lines)


def _rules() -> str:
    """How much each operator may round on its way, as the module of the rules has it."""
    return "```text\n" + "\n".join(_indented(rules.__doc__)) + "\n```"


def _identities() -> str:
    """Every identity with what it cannot see."""
    lines = ["| operators | identity | holds | blind to |", "|---|---|---|---|"]
    for row in IDENTITIES:
        how, blind = (
            "bit for bit" if row.exact else "up to rounding",
            ", ".join(row.blind_to) or "nothing in the library",
        )
        lines.append(f"| {', '.join(f'`{name}`' for name in row.operators)} | {row.name} | {how} | {blind} |")
    return "\n".join(lines)


def _indented(text: str | None) -> list[str]:
    return [line[4:] for line in (text or "").splitlines() if line.startswith("    ")]


def _noises() -> str:
    """Every registered noise model, by the name that `--error-type` takes."""
    lines = ["| `--error-type` | class | error |", "|---|---|---|"]
    for name, noise in NOISES.items():
        first = (noise.__doc__ or "").strip().splitlines()[0]
        lines.append(f"| `{name}` | `{noise.__name__}` | {first} |")
    return "\n".join(lines)


def _operators() -> str:
    """Every operator, with the spellings that count as it."""
    lines = ["| operator | spelled |", "|---|---|"]
    for name, row in OPERATORS.items():
        lines.append(f"| `{name}` | {', '.join(f'`{spelling.path}`' for spelling in row.spellings)} |")
    return "\n".join(lines)


def _picture() -> str:
    """The report of the default model, once it has been photographed."""
    there = (ROOT / "docs" / PICTURE).exists()
    return f"![The report of the default model: verdict, map, what to do]({PICTURE})" if there else ""


def _schema() -> str:
    """Where the JSON schema is, beside this page."""
    there = (ROOT / "docs" / SCHEMA).exists()
    return f"Its JSON schema (draft 2020-12): [{SCHEMA}]({SCHEMA})." if there else ""


PARTS: Mapping[str, Callable[[], str]] = {
    "rules": _rules,
    "identities": _identities,
    "locate-hits": docs_benchmarks.hits,
    "locate-limits": docs_benchmarks.limits,
    "locate-intermittent": docs_benchmarks.intermittent,
    "locate-cost": docs_benchmarks.cost,
    "locate-healthy": docs_benchmarks.healthy,
    "locate-identities": docs_benchmarks.identities,
    "locate-srdd": docs_benchmarks.srdd,
    "compare-coverage": docs_comparisons.coverage,
    "compare-cost": docs_comparisons.cost,
    "compare-honest": docs_comparisons.honest,
    "compare-faults": docs_comparisons.faults,
    "fingerprint": docs_comparisons.fingerprint,
    "commands": _commands,
    "devices": _devices,
    "errors": _errors,
    "faults": _faults,
    "noises": _noises,
    "operators": _operators,
    "picture": _picture,
    "readings": _readings,
    "schema": _schema,
    "training": docs_training.robustness,
}
