"""`noisescope diagnose`: where a model is fragile.

$ noisescope diagnose
model  SmolLM2-135M-Instruct, 30 layers, 134.5 M parameters, float32 on cpu
data   python docs, 50 rows of up to 32 tokens

Risk: HIGH (score 130)   61 forward passes, 3 min 4 s, 1.9 GB
...
Report: noisescope-out/report.html
"""

import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..operators import expand
from ..report.formats import formats_with_default
from ..specs import FIELDS, OPTIONS, PRESETS, DiagnosisSpec, checked, parse_layers
from .bars import bars
from .configuring import configure
from .flags import flag, flags_named
from .interrupts import interruptible
from .run_directory import RunDirectory
from .screen import said, show_report

__all__ = ["diagnose"]

_FIELDS = FIELDS.keys() | OPTIONS.keys()
"""what is called the same in Python and, with dashes, here"""


class Level(str, Enum):
    """How deep to look."""

    operator = "operator"
    layer = "layer"
    channel = "channel"
    full = "full"


class PresetName(str, Enum):
    """How much data and how many trials."""

    quick = "quick"
    standard = "standard"
    report = "report"


class Sampled(str, Enum):
    """What is injected for real."""

    checks = "checks"
    all = "all"


def diagnose(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="Hub id, directory or GGUF file; none: the default model.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Text, JSONL or parquet file, FILE:FIELD, or a dataset's name; none: a built-in text."),
    ] = None,
    level: Annotated[Level, typer.Option(help="How deep to look.")] = Level.full,
    preset: Annotated[
        PresetName, typer.Option(help="quick: 50 samples; standard: 100; report: 200, three draws of the noise.")
    ] = PresetName.quick,
    n_samples: Annotated[int | None, typer.Option(help="Samples of the data; overrides the preset.")] = None,
    trials: Annotated[int | None, typer.Option(help="Independent draws of the noise; overrides the preset.")] = None,
    noise_scale: Annotated[float, typer.Option(help="0.01 is conservative, 0.05 standard, 0.1 a stress test.")] = 0.05,
    error_type: Annotated[str, typer.Option(help="Noise model.")] = "relative_gaussian",
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
        Sampled, typer.Option(help="all: inject into every cell and layer, and verify every threshold.")
    ] = Sampled.checks,
    curvature: Annotated[bool, typer.Option("--curvature", help="Also the Hessian's trace by layer.")] = False,
    batch_size: Annotated[int, typer.Option(help="Rows that run together.")] = 16,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a row.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Where answers are generated.")] = 512,
    seed: Annotated[int, typer.Option(help="Of data, labels and noise.")] = 0,
    output: Annotated[Path, typer.Option(help="Directory of the report.")] = Path("noisescope-out"),
    config: Annotated[  # noqa: ARG001 - its callback reads it
        Path | None,
        typer.Option(help="YAML file; its keys are these flags, which win.", is_eager=True, callback=configure),
    ] = None,
    engine: Annotated[str, typer.Option(help="local; ray is not available yet.")] = "local",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a report that is there.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="A torch device, or auto.")] = "cpu",
    attn: Annotated[str | None, typer.Option(help="Attention implementation, such as eager or sdpa.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Take the tokenizer from there.")] = None,
    format: Annotated[
        str | None, typer.Option(help="Also write these: png, pdf; json, md and html are always written.")
    ] = None,
    save_activations: Annotated[
        bool, typer.Option("--save-activations", help="Also write what every channel did, as safetensors.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every row on the screen.")] = False,
    blocks: Annotated[str | None, typer.Option(help="Where the blocks are, if they are not found.")] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code of the model.")] = False,
) -> None:
    """Find out where a model is fragile: operators, layers, channels."""
    chosen = PRESETS[preset.value]
    options: dict[str, Any] = {
        "n_samples": chosen.n_samples if n_samples is None else n_samples,
        "calibration_samples": calibration_samples,
        "batch_size": batch_size,
        "max_length": max_length,
        "max_new_tokens": max_new_tokens,
    }
    with flags_named(_FIELDS, context):
        checked({**options, "engine": engine}, OPTIONS)
        spec = DiagnosisSpec(
            level=level.value,
            noise_scale=noise_scale,
            layer_noise_scale=layer_noise_scale,
            error_type=error_type,
            layers=flag("--layers", parse_layers, layers),
            operators=flag("--operators", expand, operators),
            window_size=window_size,
            step_size=step_size,
            avalanche_threshold=avalanche_threshold,
            outlier_threshold=outlier_threshold,
            trials=chosen.trials if trials is None else trials,
            sampled=sampled.value,
            curvature=curvature,
            seed=seed,
        )
    written = flag("--format", formats_with_default, format)
    home = RunDirectory(output, overwrite=overwrite, resume=resume, command=context.obj or ["diagnose"])
    started = time.monotonic()

    with interruptible():
        from ..diagnosis import diagnose as run
        from ..models import load

        loaded = load(
            model,
            dtype=dtype,
            device=device,
            attn=attn,
            tokenizer=tokenizer,
            trust_remote_code=trust_remote_code,
            say=said,
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
                    save_activations=output / "activations.safetensors" if save_activations else None,
                    progress=progress,
                )
            report.save(output, written)
    show_report(report, home, model=model, data=data, wall_s=time.monotonic() - started, verbose=verbose)
    if failures := report.failures:
        name, why = next(iter(failures.items()))
        said(f"noisescope: {len(failures)} points failed, first {name}: {why}")
        raise typer.Exit(1)
