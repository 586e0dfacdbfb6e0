"""`noisescope sites`: the places of a model, and the coverage meter.

$ noisescope sites
SmolLM2-135M-Instruct   30 layers, 134.5 M parameters, float32 on cpu, attention sdpa

layers  operator   module                 sites
embed   embedding  model.embed_tokens         1
0-29    linear     self_attn.q_proj          30
...
operator    sites  how it is reached
linear        211  in view
softmax        30  inside fused attention; computed in steps when selected
...
"""

import json
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import NothingMatched, printable
from ..operators import OPERATORS, expand
from ..specs import Layer, Selection, parse_layers
from .flags import flag
from .loading import Attention, Blocks, Device, Dtype, ModelName, TrustRemoteCode, load_model, say_which_model
from .screen import write
from .table import write_table

if TYPE_CHECKING:
    from ..injection import Coverage
    from ..models import LoadedModel
    from ..sites import Site

__all__ = ["sites"]


class Format(str, Enum):
    """How to print."""

    text = "text"
    json = "json"


def sites(
    model: ModelName = None,
    layers: Annotated[str | None, typer.Option(help='Such as "9-11,head".')] = None,
    operators: Annotated[str | None, typer.Option(help='Such as "softmax,norm".')] = None,
    modules: Annotated[list[str] | None, typer.Option(help="Glob or re: pattern of module paths; repeatable.")] = None,
    every: Annotated[bool, typer.Option("--all", help="One line per site, not per group.")] = False,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.text,
    dtype: Dtype = "auto",
    device: Device = "cpu",
    attn: Attention = None,
    blocks: Blocks = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """List the places of a model, and what noise can reach."""
    selection = Selection(
        flag("--layers", parse_layers, layers),
        flag("--operators", expand, operators),
        tuple(modules) if modules else None,
    )
    say_which_model(model)

    from ..injection import survey
    from ..sites import Layout, Selector

    loaded = load_model(model, dtype=dtype, device=device, attn=attn, trust_remote_code=trust_remote_code)
    coverage = survey(loaded.model, blocks=blocks)
    meant = Selector(selection, Layout.of(loaded.model, blocks=blocks))
    found = [site for site in coverage.sites if meant(site.layer, site.operator, site.module)]
    if not found and not selection.empty:
        raise NothingMatched(
            f"{selection.describe()}: no such site in {loaded.name}; run without a selection to see all"
        )
    if format is Format.json:
        write(json.dumps(_as_json(loaded, coverage, found), indent=2, allow_nan=False) + "\n")
        return
    write(_headline(loaded, coverage) + "\n\n")
    if every:
        write_table(("layer", "operator", "site"), [(str(s.layer), s.operator, s.name) for s in found])
    else:
        write_table(("layers", "operator", "module", "sites"), _grouped(found), right=(3,))
    write("\n")
    write_table(("operator", "sites", "how it is reached"), _meter(coverage, selection), right=(1,))


def _headline(loaded: "LoadedModel", coverage: "Coverage") -> str:
    model = loaded.model
    size = sum(parameter.numel() for parameter in model.parameters())
    attention = getattr(model.config, "_attn_implementation", None)
    return (
        f"{printable(loaded.name)}   {coverage.layers} layers, {size / 1e6:.1f} M parameters, "
        f"{str(model.dtype).removeprefix('torch.')} on {model.device.type}, attention {attention}"
    )


def _grouped(found: Iterable["Site"]) -> list[tuple[str, ...]]:
    """One line per operator and module, the blocks' lines folded into one."""
    groups: dict[tuple[str, str], list[Layer | None]] = {}
    for site in found:
        inside = isinstance(site.layer, int)
        module = _inside_block(site.module, site.layer) if inside else site.module
        groups.setdefault((site.operator, module), []).append(site.layer)
    return [(_ranges(layers), operator, module, str(len(layers))) for (operator, module), layers in groups.items()]


def _inside_block(module: str, layer: Layer | None) -> str:
    """The path within the block: what follows the block's own index."""
    names = module.split(".")
    at = names.index(str(layer)) if str(layer) in names else -1
    return ".".join(names[at + 1 :]) or "(block)"


def _ranges(layers: Iterable[Layer | None]) -> str:
    """Layers in words: 0-29, or 0 2 4, or the name of what lies outside."""
    distinct = list(dict.fromkeys(layers))
    numbers = sorted(layer for layer in distinct if isinstance(layer, int))
    if not numbers:
        return " ".join(map(str, distinct))
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return " ".join(map(str, numbers))


def _meter(coverage: "Coverage", selection: Selection) -> list[tuple[str, ...]]:
    hidden = coverage.hidden_operators
    lines: list[tuple[str, ...]] = []
    for name in selection.operators if selection.operators is not None else OPERATORS:
        in_view, in_steps = coverage.count(name, in_steps=False), coverage.count(name, in_steps=True)
        ways = ["in view"] if in_view else []
        if in_steps:
            ways.append(
                f"{in_steps if in_view else ''} inside fused attention; computed in steps when selected "
                f"(differs from the kernel by at most {coverage.steps_difference:.1e})".lstrip()
            )
        if name in hidden:
            ways.append(f"hidden in {hidden[name]} fused kernels; load with --attn sdpa or eager")
        lines.append((name, str(in_view + in_steps), ", ".join(ways) or "not computed by this model"))
    return lines


def _as_json(loaded: "LoadedModel", coverage: "Coverage", found: list["Site"]) -> dict[str, object]:
    return {
        "model": loaded.name,
        "layers": coverage.layers,
        "sites": [
            {
                "name": site.name,
                "layer": site.layer,
                "operator": site.operator,
                "module": site.module,
                "in_steps": site in coverage.in_steps,
            }
            for site in found
        ],
        "hidden": [
            {"module": module, "kernel": kernel, "operators": list(names)}
            for (module, kernel), names in coverage.hidden.items()
        ],
        "steps_difference": coverage.steps_difference,
    }
