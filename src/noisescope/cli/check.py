"""`noisescope check`: whether a checkpoint is as robust as the last one that was found good.

$ noisescope check step-1000/ --save-baseline baseline.json
$ noisescope check step-2000/ --baseline baseline.json --max-degradation 0.15
step-2000 against step-1000: relative_gaussian noise of scale 0.05 on python docs, 400 samples ..., 9.3 forward passes
ok      linear    8.1% [6.9, 9.3] of accuracy lost, 7.9% in the baseline: 0.2 [-0.5, 0.9] points more; sees 3.1 points
FAILED  softmax   noise on it costs 12.1% of accuracy, 5.0% in the baseline: 7.1 points [5.9, 8.3] worse (p 1e-12)
FAILED: more is lost than allowed to noise on softmax; a change of 3.4 points would be seen in 4 of 5 cases, ...
Report: noisescope-check/check.html

The exit code is the verdict: 0 passed, 1 failed, 11 inconclusive.
"""

# ruff: noqa: ARG001 - `checked_flags` takes the parameters of the command from its context

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError, NoisescopeError, printable
from ..report.check import FILES
from ..report.check.words import advice, subject, warning
from ..specs import FIELDS, OPTIONS
from ..specs.checks import number, optional, text
from ..store.files import store_errors
from .bars import bars
from .flags import checked_flags, flag, flags_named, is_typed
from .interrupts import interruptible
from .loading import (
    Attention,
    Blocks,
    Device,
    Dtype,
    ModelName,
    Tokenizer,
    TrustRemoteCode,
    load_model,
    say_which_model,
)
from .run_directory import refuse_place
from .screen import said, show

if TYPE_CHECKING:
    from ..gate import RobustnessCheck
    from ..gate.baseline import Baseline, Limits
    from ..models import LoadedModel

__all__ = ["check"]

_NOISE = ("noise_scale", "error_type", "layers", "operators", "seed")
"""what the baseline says, and nobody has to say again"""
_OPENING = ("n_samples", "batch_size", "max_length")
_OF_A_CHECK = ("max_degradation", "resolution", "history", "label", "output")
"""what is not looked at when a baseline is made"""
_CHECKS = {
    **{name: optional(FIELDS[name]) for name in _NOISE},
    **{name: optional(OPTIONS[name]) for name in _OPENING},
    **dict.fromkeys(("baseline", "save_baseline", "history", "label"), optional(text)),
    "max_degradation": optional(number(above=0, most=1)),
    "resolution": number(above=0.01, most=1),
}
_FIELDS = (*_NOISE, *_OPENING, "max_degradation", "resolution", "blocks", "data")
"""what errors of the library may begin with"""


def check(
    context: typer.Context,
    model: ModelName = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Hold the model against this: what --save-baseline wrote, or, for its limits alone, a report.",
            metavar="<file>",
        ),
    ] = None,
    save_baseline: Annotated[
        str | None, typer.Option(help="Make a baseline of the model, and write it there.", metavar="<file>")
    ] = None,
    max_degradation: Annotated[
        float | None, typer.Option(help="Share of accuracy that noise on any operator may cost, such as 0.15.")
    ] = None,
    resolution: Annotated[
        float,
        typer.Option(help="The change, as a share of accuracy, that must be visible; else it is inconclusive."),
    ] = 0.05,
    data: Annotated[
        str | None,
        typer.Option(help="Text, JSONL or parquet file, FILE:FIELD, or a dataset's name; none: a built-in text."),
    ] = None,
    n_samples: Annotated[int | None, typer.Option(help="Samples of the data; none: the baseline's, or 400.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a row; none: the baseline's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows that run together; none: the baseline's, or 16.")] = None,
    noise_scale: Annotated[float | None, typer.Option(help="None: the baseline's, or 0.05.")] = None,
    error_type: Annotated[
        str | None, typer.Option(help="Noise model; none: the baseline's, or relative_gaussian.")
    ] = None,
    layers: Annotated[str | None, typer.Option(help='Such as "9-11,head"; none: the baseline\'s, or all.')] = None,
    operators: Annotated[
        str | None, typer.Option(help='Such as "softmax,norm"; none: the baseline\'s, or all.')
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of data and noise; none: the baseline's, or 0.")] = None,
    history: Annotated[
        str | None, typer.Option(help="Add the result to this file, and draw all that is in it.", metavar="<file>")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="What the checkpoint is called there; none: the model's name.")
    ] = None,
    output: Annotated[str, typer.Option(help="Directory of the result.", metavar="<path>")] = "noisescope-check",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a result or baseline that is there.")] = False,
    dtype: Dtype = "auto",
    device: Device = "cpu",
    attn: Attention = None,
    tokenizer: Tokenizer = None,
    blocks: Blocks = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Check that a checkpoint is as robust to noise as a baseline. At most 12 forward passes over the data."""
    asked = checked_flags(context, _CHECKS)
    _refuse(context, asked)
    with interruptible():
        say_which_model(model)
        from ..gate.baseline import open_baseline
        from ..measure.sources import require_file

        if data is not None:
            flag("--data", require_file, data)
        known = flag("--baseline", open_baseline, baseline) if baseline is not None else None
        if known is not None:
            _refuse_other_noise(known, asked, context)
        loaded = load_model(
            model, dtype=dtype, device=device, attn=attn, tokenizer=tokenizer, trust_remote_code=trust_remote_code
        )
        with flags_named(_FIELDS, context):
            if known is None:
                return _make_baseline(loaded, asked)
            found = _run(loaded, known, asked)
        show(_told(found))  # before it is saved: it took a while, and the disk may be full
        _refuse(context, asked)
        page = found.save(output)
        if history is not None:
            _remember(found, history, label or loaded.name, output)
    show(f"Report: {printable(str(page))}\n")
    return found.exit_code


def _make_baseline(loaded: "LoadedModel", asked: Mapping[str, Any]) -> int:
    """Measures the model and writes the baseline."""
    from ..gate import take_baseline

    given = {name: asked[name] for name in (*_NOISE, *_OPENING) if asked[name] is not None}
    with bars() as progress:
        made = take_baseline(
            loaded.model,
            asked["data"],
            tokenizer=loaded.tokenizer,
            blocks=asked["blocks"],
            name=loaded.name,
            progress=progress,
            **given,
        )
    _refuse_file("--save-baseline", asked["save_baseline"], overwrite=asked["overwrite"])
    place = made.save(asked["save_baseline"])
    found = made.evaluation
    show(
        f"{printable(loaded.name)}: clean accuracy {found.accuracy:.1%}, {len(found.noisy)} operators, "
        f"{len(found.asked)} samples, {found.cost:.1f} forward passes\nBaseline: {printable(str(place))}\n"
    )
    return 0


def _run(loaded: "LoadedModel", known: "Baseline | Limits", asked: Mapping[str, Any]) -> "RobustnessCheck":
    """The check itself; errors about the baseline call it by its file."""
    from ..gate import check as run
    from ..gate.history import refuse_other

    def look_at_history(question: Mapping[str, Any]) -> None:
        if asked["history"] is not None:
            refuse_other(asked["history"], question)

    with bars() as progress:
        try:
            return run(
                loaded.model,
                asked["data"],
                baseline=known,
                tokenizer=loaded.tokenizer,
                name=loaded.name,
                once_asked=look_at_history,
                progress=progress,
                **{name: asked[name] for name in ("max_degradation", "resolution", "blocks", *_OPENING)},
            )
        except InputError as error:
            named = [_with_file(problem, asked["baseline"]) for problem in error.problems]
            raise InputError(*named) from None


def _with_file(problem: str, file: str) -> str:
    return f"--baseline: {file}{problem.removeprefix('baseline')}" if problem.startswith("baseline: ") else problem


def _remember(found: "RobustnessCheck", history: str, label: str, output: str) -> None:
    """Adds the check to the history and draws it; the verdict is saved and stands, whatever becomes of that."""
    from ..gate.history import append, entry_of

    try:
        entries = append(history, found.sections["question"], entry_of(found, label))
        found.with_history([entry.as_json() for entry in entries]).save(output)
    except NoisescopeError as error:
        said(f"noisescope: the result stands, but the history lacks it or is not drawn: {error}")


def _told(found: "RobustnessCheck") -> str:
    sections = found.sections
    lines = [subject(sections), *str(found).splitlines(), warning(sections), advice(sections)]
    return "".join(f"{printable(line)}\n" for line in lines if line)


# --- what is refused before anything takes time -----------------------------------------------------------------


def _refuse(context: typer.Context, asked: Mapping[str, Any]) -> None:
    """Raises for what cannot be meant together, and for places that could not or must not be written."""
    overwrite = asked["overwrite"]
    if (asked["baseline"] is None) == (asked["save_baseline"] is None):
        raise InputError("check: expected --baseline FILE, or --save-baseline FILE to make one first; one of the two")
    if asked["save_baseline"] is not None:
        unused = [name for name in _OF_A_CHECK if is_typed(name, context)]
        if unused:
            flags = (f"--{name.replace('_', '-')}" for name in unused)
            raise InputError(*(f"{name}: is not looked at with --save-baseline; leave it out" for name in flags))
        _refuse_file("--save-baseline", asked["save_baseline"], overwrite=overwrite)
        return
    _refuse_directory(Path(asked["output"]), overwrite=overwrite)
    if asked["history"] is not None:
        with store_errors(Path(asked["history"])):
            refuse_place(Path(asked["history"]).parent, [Path(asked["history"]).name], flag="--history")
    elif asked["label"] is not None:
        raise InputError("--label: names the checkpoint in a history; give the file too (--history), or leave it out")


def _refuse_file(name: str, file: str, *, overwrite: bool) -> None:
    with store_errors(Path(file)):
        refuse_place(Path(file).parent, [Path(file).name], flag=name)
        if os.path.lexists(file) and not overwrite:
            raise InputError(f"{name}: {file} is there already; use another name or --overwrite")


def _refuse_directory(home: Path, *, overwrite: bool) -> None:
    files = [*FILES.values(), "junit.xml", "trend.png"]
    with store_errors(home):
        refuse_place(home, files)
        for name in files:
            if not overwrite and os.path.lexists(home / name):
                raise InputError(f"{home / name}: is there already; use another directory (--output) or --overwrite")


def _refuse_other_noise(known: "Baseline | Limits", asked: Mapping[str, Any], context: typer.Context) -> None:
    """Raises for noise that was typed and is not the baseline's."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asked.items()}
    problems = [
        f"--{name.replace('_', '-')}: got {plain[name]}, but the baseline was made with {known.question[name]}; leave "
        "it out, or make another baseline"
        for name in _NOISE
        if is_typed(name, context) and _in_any_order(plain[name]) != _in_any_order(known.question[name])
    ]
    if problems:
        raise InputError(*problems)


def _in_any_order(value: Any) -> Any:
    """Operators are asked for as a set: which of them is named first makes no difference."""
    return sorted(map(str, value)) if isinstance(value, list) else value
