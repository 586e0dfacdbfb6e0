"""`noisescope diagnose`: where a model is fragile.

$ noisescope diagnose
model  SmolLM2-135M-Instruct, 30 layers, 134.5 M parameters, float32 on cpu
data   python docs, 50 rows of up to 32 tokens

Risk: HIGH (score 130)   61 forward passes
...
took 3 min 4 s, 1.9 GB at most
Report: noisescope-out/report.html
"""

# ruff: noqa: ARG001 - `read_flags` takes the parameters of the command from its context

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..report.formats import FORMATS
from ..specs import FIELDS, LEVELS, OPTIONS, PRESETS, SAMPLED, DiagnosisSpec, checked, known
from ..specs.checks import optional
from .bars import bars
from .configuring import configure
from .flags import flags_named, is_typed, read_flags
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
from .run_directory import RunDirectory, program
from .screen import said, show_report

if TYPE_CHECKING:
    from ..diagnosis.commands import Commands

__all__ = ["diagnose"]

ACTIVATIONS = "activations.safetensors"
_FIELDS = FIELDS.keys() | OPTIONS.keys()
"""what is called the same in Python and, with dashes, here"""
_FILES = ("data", "calibration_data")
"""what may name a file, which is looked for before a model is fetched"""


def _choice(names: Iterable[str]) -> str:
    return f"[{'|'.join(names)}]"


def diagnose(
    context: typer.Context,
    model: ModelName = None,
    data: Annotated[
        str | None,
        typer.Option(help="Text, JSONL or parquet file, FILE:FIELD, or a dataset's name; none: a built-in text."),
    ] = None,
    level: Annotated[str, typer.Option(help="How deep to look.", metavar=_choice(LEVELS))] = "full",
    preset: Annotated[
        str,
        typer.Option(
            help="quick: 50 samples; standard: 100; report: 200, three draws of the noise.", metavar=_choice(PRESETS)
        ),
    ] = "quick",
    n_samples: Annotated[int | None, typer.Option(help="Samples of the data; overrides the preset.")] = None,
    trials: Annotated[int | None, typer.Option(help="Independent draws of the noise; overrides the preset.")] = None,
    noise_scale: Annotated[
        float, typer.Option(help="0.01 is conservative, 0.05 standard, 0.1 a stress test; a number format: 1.")
    ] = 0.05,
    error_type: Annotated[
        str, typer.Option(help="Noise model, or a number format such as mxfp4.")
    ] = "relative_gaussian",
    layer_noise_scale: Annotated[
        float | None, typer.Option(help="Of windows, groups and single layers; none: --noise-scale.")
    ] = None,
    layers: Annotated[str | None, typer.Option(help='Such as "9-11,head".')] = None,
    operators: Annotated[str | None, typer.Option(help='Such as "softmax,norm".')] = None,
    window_size: Annotated[int, typer.Option(help="Layers of a window.")] = 3,
    step_size: Annotated[int, typer.Option(help="Layers from one window to the next.")] = 1,
    avalanche_threshold: Annotated[
        float, typer.Option(help="Share of accuracy that a window must lose to be an avalanche point.")
    ] = 0.15,
    outlier_threshold: Annotated[float, typer.Option(help="Ratio above which a channel is an outlier.")] = 10.0,
    calibration_data: Annotated[str | None, typer.Option(help="What channels are looked at on; none: --data.")] = None,
    calibration_samples: Annotated[int | None, typer.Option(help="Samples of it.")] = None,
    sampled: Annotated[
        str,
        typer.Option(
            help="all: inject into every cell and layer, and verify every threshold.", metavar=_choice(SAMPLED)
        ),
    ] = "checks",
    curvature: Annotated[bool, typer.Option("--curvature", help="Also the Hessian's trace by layer.")] = False,
    batch_size: Annotated[int, typer.Option(help="Rows that run together.")] = 16,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a row.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Where answers are generated.")] = 512,
    seed: Annotated[int, typer.Option(help="Of data, labels and noise.")] = 0,
    output: Annotated[str, typer.Option(help="Directory of the report.", metavar="<path>")] = "noisescope-out",
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file; its keys are these flags, which win.", is_eager=True, callback=configure),
    ] = None,
    engine: Annotated[str, typer.Option(help="local; ray is not available yet.")] = "local",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a report that is there.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    dtype: Dtype = "auto",
    device: Device = "cpu",
    attn: Attention = None,
    tokenizer: Tokenizer = None,
    format: Annotated[
        str | None, typer.Option(help="Also write these: png, pdf; json, md and html are always written.")
    ] = None,
    save_activations: Annotated[
        bool, typer.Option("--save-activations", help="Also write what every channel did, as safetensors.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every row on the screen.")] = False,
    blocks: Blocks = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find out where a model is fragile: operators, layers, channels."""
    asked = _with_whole_formats(read_flags(context), context)
    with flags_named(_FIELDS, context):
        spec, options = _question(asked)
    files = [FORMATS[name].file for name in asked["format"]]
    home = RunDirectory(
        Path(output),
        writes=[*files, ACTIVATIONS] if save_activations else files,
        overwrite=overwrite and not _is_beaten("overwrite", "resume", context),
        resume=resume and not _is_beaten("resume", "overwrite", context),
        command=context.obj or ["diagnose"],
        asked={name: asked[name] for name in ("model", "data", "tokenizer")},
    )

    with interruptible():
        say_which_model(model)
        from ..diagnosis import diagnose as run
        from ..measure.sources import require_file

        with flags_named(_FILES, context):
            checked(asked, dict.fromkeys(_FILES, optional(require_file)))
        loaded = load_model(
            model, dtype=dtype, device=device, attn=attn, tokenizer=tokenizer, trust_remote_code=trust_remote_code
        )
        with flags_named(_FIELDS, context), home.running():
            with bars() as progress:
                report = run(
                    loaded.model,
                    data,
                    spec=spec,
                    tokenizer=loaded.tokenizer,
                    calibration_data=calibration_data,
                    **options,
                    blocks=blocks,
                    name=loaded.name,
                    journal=home.journal,
                    save_activations=home.path / ACTIVATIONS if save_activations else None,
                    progress=progress,
                )
            report.save(home.path, asked["format"])
    show_report(report, home, _commands(asked, spec, options, home), verbose=verbose)
    if failures := report.failures:
        name, why = next(iter(failures.items()))
        said(f"noisescope: {len(failures)} points failed, first {name}: {why}")
        raise typer.Exit(1)


def _with_whole_formats(asked: dict[str, Any], context: typer.Context) -> dict[str, Any]:
    """A number format is meant whole, unless somebody says how much of its error."""
    source = context.get_parameter_source("noise_scale")
    if asked["error_type"] in known.FORMATS and source is not None and source.name == "DEFAULT":
        return {**asked, "noise_scale": 1.0}
    return asked


def _question(asked: Mapping[str, Any]) -> tuple[DiagnosisSpec, dict[str, Any]]:
    """What to find out, and on how much data; the preset fills in what was not said."""
    given = {**asked, **{name: value for name, value in vars(PRESETS[asked["preset"]]).items() if asked[name] is None}}
    spec = DiagnosisSpec(**{name: given[name] for name in FIELDS if name in given})
    return spec, {name: given[name] for name in OPTIONS if name != "engine"}


def _is_beaten(name: str, opposite: str, context: typer.Context) -> bool:
    """Whether a key of a configuration says this, and a flag on the command line the opposite."""
    return is_typed(opposite, context) and not is_typed(name, context)


def _commands(
    asked: Mapping[str, Any], spec: DiagnosisSpec, options: Mapping[str, Any], home: RunDirectory
) -> "Commands":
    """The commands to run next, with model, data and directories as this person calls them."""
    from ..diagnosis.commands import Commands

    repeated = ("calibration_data", "dtype", "device", "attn", "tokenizer", "blocks", "trust_remote_code")
    return Commands.naming(
        asked["model"] or "",
        asked["data"],
        spec=spec,
        n_samples=options["n_samples"],
        options={name: {**asked, **options}[name] for name in (*options, *repeated) if name != "n_samples"},
        output=str(home.path),
        program=program(),
    )
