"""Noise switched on from outside, for programs that cannot be edited: environment variables, read once at import.

    VERL_NOISY_OPS_ENABLED=1  _SCALE=0.05  _TYPE=relative_gaussian  _ALL_OPS=1  _FORWARD_ONLY=1  _BACKWARD_ONLY=1
    NOISESCOPE_LAYERS=9-11,head  NOISESCOPE_OPERATORS=softmax,norm  NOISESCOPE_SEED=7
    NOISESCOPE_COUNTS=/shared/counts      a directory, where every process leaves proof of its noise: see `witness`

This is process-wide. torch's function modes belong to one thread each, and Python offers no way to run code when a
thread starts, so a process-wide module hook opens an injection on each thread at its first call of a module, and
it is closed when the thread ends. Covered: on the importing thread everything, on every other thread everything
from its first module call on. Not covered: torch functions that another thread calls before any module.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ..errors import InputError, StoreError, unknown_name
from ..injection.scope import in_backward
from ..specs import parse_layers
from .running import ThisThread, here, log
from .settings import Settings
from .witness import keep_witness

__all__ = ["activate", "read"]

_PREFIX = "VERL_NOISY_OPS_"
_SWITCH = _PREFIX + "ENABLED"
_COUNTS = "NOISESCOPE_COUNTS"
_OTHERS = (_COUNTS, "NOISESCOPE_CACHE", "NOISESCOPE_PROGRAM", "NOISESCOPE_REPORT")
"""of our variables those that are no settings of noise: the proof, the models' place, the program's name, its tests"""
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise InputError(f'got "{text}", expected one of {" ".join(_FLAGS)}')
    return _FLAGS[text.lower()]


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f'got "{text}", expected a whole number') from None


_VARIABLES: Mapping[str, Callable[[Settings, str], Settings]] = {
    "VERL_NOISY_OPS_TYPE": lambda now, text: replace(now, error_type=text),
    "VERL_NOISY_OPS_SCALE": lambda now, text: replace(now, error_scale=text),  # type: ignore[arg-type]  # checked there
    "VERL_NOISY_OPS_ALL_OPS": lambda now, text: replace(now, all_ops_mode=_flag(text)),
    "VERL_NOISY_OPS_FORWARD_ONLY": lambda now, text: replace(now, backward=not _flag(text)),
    "VERL_NOISY_OPS_BACKWARD_ONLY": lambda now, text: replace(now, forward=not _flag(text)),
    "NOISESCOPE_LAYERS": lambda now, text: replace(now, layers=parse_layers(text)),
    "NOISESCOPE_OPERATORS": lambda now, text: replace(now, operators=tuple(text.replace(",", " ").split())),
    "NOISESCOPE_SEED": lambda now, text: replace(now, seed=_seed(text)),
}


def read(environ: Mapping[str, str]) -> Settings | None:
    """The settings that the environment asks for, or None if it does not switch noise on."""
    given = {name: text.strip() for name, text in environ.items() if text.strip()}
    if not _applied(_SWITCH, _flag, given.get(_SWITCH, "0")):
        return None
    known = (_SWITCH, *_VARIABLES, *_OTHERS)
    for name in given:
        if name.startswith((_PREFIX, "NOISESCOPE_")) and name not in known:
            raise unknown_name("environment variable", name, known)
    settings = Settings()
    for name, change in _VARIABLES.items():
        if name in given:
            settings = _applied(name, change, settings, given[name])
    if not settings.phases:
        raise InputError("VERL_NOISY_OPS_FORWARD_ONLY and VERL_NOISY_OPS_BACKWARD_ONLY: got both, expected at most one")
    return settings


def _applied(name: str, change: Callable[..., Any], *given: Any) -> Any:
    """The change's result; what it refuses is refused with the variable's name."""
    try:
        return change(*given)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None


def activate(environ: Mapping[str, str]) -> None:
    """Switches noise on in this process if the environment asks for it, and says so once in the log."""
    settings = read(environ)
    if settings is not None and (directory := environ.get(_COUNTS, "").strip()):
        _keep_witness(directory, settings)  # before anything is switched on: there is no noise without its proof
    ThisThread.everywhere = settings
    if settings is None:
        return
    here.settings, here.counts = settings, here.shared
    here.cover()
    register_module_forward_pre_hook(_cover_this_thread)
    log.warning(
        "noise is on by environment, in every thread of this process from its first module call on: %s", settings
    )


def _keep_witness(directory: str, settings: Settings) -> None:
    try:
        keep_witness(Path(directory), settings, here.shared)
    except StoreError as error:
        raise StoreError(f"{_COUNTS}: {error}") from None


def _cover_this_thread(module: nn.Module, args: Any) -> Any:
    if ThisThread.everywhere is None or in_backward() or not here.cover() or here.running is None:
        return None
    return here.running.join(module, args)
