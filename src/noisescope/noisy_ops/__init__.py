"""The documented functions that switch noise on and off, for programs that are written around them.

    from noisescope.noisy_ops import enable_noisy_ops, disable_noisy_ops, ...

    set_selective_operators(["softmax"])
    enable_noisy_ops(error_scale=0.05, all_ops_mode=True)
    logits = model(**batch).logits
    disable_noisy_ops()
    get_operator_injection_stats()["softmax"]      # {"forward": 24, "backward": 0}

A thin layer over `noisescope.inject`, which new code should use: it is bound to one model, always restores, and
refuses to do nothing. Here noise goes into every model that the thread runs, and into plain torch calls.

Everything affects the calling thread only. Settings made while noise is on are in force at once; gradient noise is
placed by the forward pass, so switching it on between the two comes too late for that pass. A selection under
which modules ran and nothing was disturbed is reported in the log, not raised. Noise depends on seed, site and step
alone, and every `enable_noisy_ops` begins at step 0: the same calls get the same noise, another seed other noise.

The exception is a process started with `VERL_NOISY_OPS_ENABLED=1`: see `environment` for the variables, for what is
covered on other threads and for the little that cannot be. Its threads share one set of counts; with
`NOISESCOPE_COUNTS` they are in a file too, and `read_counts` tells which processes had noise.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ..errors import InputError
from ..injection.scope import in_backward
from ..operators import OPERATORS
from ..specs import OUTSIDE, Layer, parse_layers
from .counts import Counts, Tally
from .environment import activate
from .running import here

__all__ = [
    "disable_noisy_ops",
    "enable_noisy_ops",
    "get_current_layer",
    "get_injection_stats",
    "get_layer_injection_stats",
    "get_noise_phases",
    "get_operator_injection_stats",
    "get_phase",
    "get_selective_layers",
    "get_selective_operators",
    "noisy_ops_context",
    "print_injection_summary",
    "read_counts",
    "register_layer_hooks",
    "reset_injection_stats",
    "reset_layer_injection_stats",
    "reset_operator_injection_stats",
    "set_layer_window",
    "set_noise_phases",
    "set_operator_noise_scales",
    "set_per_layer_scales",
    "set_phase",
    "set_selective_layers",
    "set_selective_operators",
    "set_selective_ops",
]


# --- on and off ---------------------------------------------------------------------------------------------------


def enable_noisy_ops(
    error_scale: float = 1e-5,
    error_type: str = "relative_gaussian",
    all_ops_mode: bool = False,
    *,
    seed: int = 0,
) -> None:
    """Switches noise on, on this thread, until `disable_noisy_ops`; counts and steps begin at zero.

    Where noise is on already, scale, type, mode and seed are replaced. Selections, phases and multipliers are
    settings of their own and stay as they are.

    Args:
        error_scale: how much, in the unit of the noise model; 0 changes no bit. bfloat16 swallows relative noise
            below about 1e-3.
        error_type: `relative_gaussian`, `absolute_gaussian`, `uniform`, `systematic_bias`, `bit_flip`, ...
        all_ops_mode: False for the core operators matmul, bmm and linear, True for all. An operator that is
            selected by name gets noise in either mode.
        seed: another seed, other draws.
    """
    settings = replace(
        here.settings, error_scale=error_scale, error_type=error_type, all_ops_mode=all_ops_mode, seed=seed
    )
    here.counts, here.refused = Counts(), False
    here.switch_on(settings)


def disable_noisy_ops() -> None:
    """Switches noise off on this thread and leaves no trace; settings and counts can still be read."""
    here.refused = True
    here.switch_off()


@contextmanager
def noisy_ops_context(
    error_scale: float = 1e-5,
    error_type: str = "relative_gaussian",
    all_ops_mode: bool = False,
    *,
    seed: int = 0,
) -> Iterator[None]:
    """Noise for the length of a `with` block; then everything is as it was before, also after an exception.

    Nests: inside, the inner settings hold instead of the outer ones, and what is set inside is undone at the end.
    Counts begin at zero in the outermost block and go on in the inner ones. Arguments as in `enable_noisy_ops`.
    """
    here.cover()
    before = here.remember()
    settings = replace(
        here.settings, error_scale=error_scale, error_type=error_type, all_ops_mode=all_ops_mode, seed=seed
    )
    if here.running is None:
        here.counts = Counts()
    here.switch_on(settings)
    try:
        yield
    finally:
        here.go_back(before)


# --- where ----------------------------------------------------------------------------------------------------------


def set_noise_phases(forward: bool = True, backward: bool = True) -> None:
    """Which phases get noise: values in the forward pass, gradients in the backward pass. Both at first."""
    here.apply(replace(here.settings, forward=bool(forward), backward=bool(backward)))


def get_noise_phases() -> dict[str, bool]:
    """The phases as `{"forward": bool, "backward": bool}`."""
    return {"forward": here.settings.forward, "backward": here.settings.backward}


def set_selective_layers(layer_ids: int | str | Iterable[int | str] | None = None) -> None:
    """Noise in these layers only: indices, ranges ("9-11"), `embed`, `final_norm`, `head`. None: all, []: none."""
    here.apply(replace(here.settings, layers=parse_layers(layer_ids)))


def get_selective_layers() -> list[Layer] | None:
    """The selected layers, None for all."""
    return None if here.settings.layers is None else list(here.settings.layers)


def set_layer_window(start: int, end: int) -> None:
    """Noise in layers start to end - 1 only."""
    if not 0 <= start < end:
        raise InputError(f"layer window: got {start} to {end}, expected 0 <= start < end (the end is not included)")
    set_selective_layers(range(start, end))


def set_selective_operators(op_types: str | Iterable[str] | None = None) -> None:
    """Noise in these operators only, core or not. None: all that the mode allows, []: none.

    `layer_norm`, `layernorm` and `norm` mean both kinds of norm. Statistics name the kind that ran: `rms_norm` in a
    Llama. `matmul` is the products of attention and not the linears, which are `linear`.
    """
    names = op_types.replace(",", " ").split() if isinstance(op_types, str) else op_types
    here.apply(replace(here.settings, operators=None if names is None else tuple(names)))


set_selective_ops = set_selective_operators


def get_selective_operators() -> list[str] | None:
    """The selected operators as they were given, None for all that the mode allows."""
    return None if here.settings.operators is None else list(here.settings.operators)


def set_operator_noise_scales(scale_dict: Mapping[str, float] | None = None) -> None:
    """Multipliers of the scale per operator, in place of those set before; 1 for operators not named."""
    here.apply(replace(here.settings, operator_scales=dict(scale_dict or {})))


def set_per_layer_scales(layer_scales: Mapping[int | str, float] | None = None) -> None:
    """A scale of its own per layer, in place of those set before; layers not named have `error_scale`."""
    given = (layer_scales or {}).items()
    scales = {layer: scale for names, scale in given for layer in parse_layers(names) or ()}
    here.apply(replace(here.settings, layer_scales=scales))


def register_layer_hooks(model: nn.Module, *, blocks: str | None = None) -> int:
    """How many layers a model has; from here on this thread knows them.

    Nothing is attached to the model, the name is historical. Models that run while noise is on are recognised
    without this. It is for statistics that show a model's layers before it runs, for code that calls a model's
    parts one by one, and for naming the blocks by hand (`blocks="path.of.the.list"`).
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: got {type(model).__name__}, expected a torch module")
    return here.register(model, blocks)


def get_current_layer() -> Layer | None:
    """The layer that runs now on this thread: an index, `embed`, `final_norm` or `head`.

    None outside any model, between two blocks (where a block's own forward hooks run), and while noise is off, when
    nobody watches.
    """
    return here.running.layer if here.running is not None else None


def set_phase(phase: str | None) -> None:
    """Labels what the program is doing, such as "rollout", for `get_phase` and the summary; None removes the label.

    It changes nothing about the noise: for that see `set_noise_phases`.
    """
    if phase is not None and not isinstance(phase, str):
        raise InputError(f"phase: got {phase!r}, expected a label or None")
    here.apply(replace(here.settings, phase=phase))


def get_phase() -> str:
    """The label of `set_phase`; without one what runs now: "backward", "forward", or "unknown" for neither."""
    if here.settings.phase is not None:
        return here.settings.phase
    if in_backward():
        return "backward"
    return "forward" if here.running is not None and here.running.busy else "unknown"


# --- statistics -----------------------------------------------------------------------------------------------------


def get_injection_stats() -> dict[str, bool | float | str | int]:
    """`{enabled, error_scale, error_type, forward, backward}`: the settings, and how many values were disturbed."""
    return {
        "enabled": here.enabled,
        "error_scale": here.settings.error_scale,
        "error_type": here.settings.error_type,
        "forward": here.counts.total("forward"),
        "backward": here.counts.total("backward"),
    }


def get_layer_injection_stats() -> dict[Layer | None, dict[str, int]]:
    """`{0: {"forward": n, "backward": m}, ..., "embed": .., "final_norm": .., "head": ..}`.

    Every layer of a model that is registered or ran is there, with zeros too. Calls outside any model are under
    None, where there were any.
    """
    counted = here.counts.by("layer")
    outside_models = [None] if any(count for (layer, _), count in counted.items() if layer is None) else []
    return _table([*range(here.blocks), *OUTSIDE, *outside_models], counted)


def get_operator_injection_stats() -> dict[str, dict[str, int]]:
    """`{operator: {"forward": n, "backward": m}}` of all operators, with zeros too."""
    return _table(OPERATORS, here.counts.by("operator"))


_Name = TypeVar("_Name", bound=Layer | None)


def _table(names: Iterable[_Name], counted: Tally) -> dict[_Name, dict[str, int]]:
    return {name: {phase: counted[name, phase] for phase in ("forward", "backward")} for name in names}


def reset_injection_stats() -> None:
    """Sets all counts to zero."""
    here.counts.reset()


def reset_layer_injection_stats() -> None:
    """Sets the counts by layer to zero; the others go on."""
    here.counts.reset("layer")


def reset_operator_injection_stats() -> None:
    """Sets the counts by operator to zero; the others go on."""
    here.counts.reset("operator")


def print_injection_summary() -> None:
    """Prints the settings, the dose really applied, and how many values were disturbed in which operator and layer."""
    state = "on" if here.enabled else "off"
    label = f", phase {here.settings.phase}" if here.settings.phase else ""
    lines = [f"noise is {state}{label}: {here.settings}"]
    lines += [f"dose of {name}: {dose:.4g}" for name, dose in here.counts.doses().items()] or ["nothing injected"]
    for title, table in (("operator", get_operator_injection_stats()), ("layer", get_layer_injection_stats())):
        touched = {name: counts for name, counts in table.items() if any(counts.values())}
        lines += [f"{title:<12}{'forward':>10}{'backward':>10}"] if touched else []
        lines += [f"{name!s:<12}{counts['forward']:>10}{counts['backward']:>10}" for name, counts in touched.items()]
    print("\n".join(lines))  # noqa: T201 - printing is what it is asked for


def read_counts(directory: str | Path) -> list[dict[str, Any]]:
    """What every process that had `NOISESCOPE_COUNTS=directory` disturbed, by host and pid.

    Each is `{pid, host, settings, forward, backward, layers, operators, doses}`; layers and operators that were touched
    are there, under their names as text, "None" for calls outside any model. A process that is not there had no noise;
    one with zeros had it switched on, and nothing ran that it can reach. Processes may still be at work: one that was
    killed tells all but its last second.
    """
    from .proofs import read_proofs

    return read_proofs(Path(directory))


activate(os.environ)
