"""The border to transformers and the hub: nothing is printed, and whatever they raise is one line about one model."""

__all__ = ["guarded", "one_line", "quiet", "remote_code_refused"]

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import Any

from ..errors import ModelError, NoisescopeError

_LONGEST = 240
_LOGGERS = ("transformers", "huggingface_hub", "accelerate")


def one_line(thing: object) -> str:
    """The text of thing (often an exception) on one line, short enough for an error message."""
    if isinstance(thing, KeyError) and thing.args:
        thing = f"no {thing.args[0]!r}"
    text = " ".join(str(thing).split()) or type(thing).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def remote_code_refused(what: str) -> ModelError:
    """The error for a model that brings Python code along, with the way to opt in."""
    return ModelError(
        f"{one_line(what)}: needs Python code of its own (auto_map), which is not run; if you trust its author, pass "
        "trust_remote_code=True (--trust-remote-code)"
    )


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Silence inside, and every exception of a library as ModelError("what: reason")."""
    with quiet():
        try:
            yield
        except NoisescopeError:
            raise
        except Exception as error:  # the parsers behind transformers raise anything; all of it means "not this model"
            if "trust_remote_code" in str(error):
                raise remote_code_refused(what) from error
            raise ModelError(f"{one_line(what)}: {one_line(error)}") from error


@contextmanager
def quiet(*, progress: bool = False) -> Iterator[None]:
    """No log line, warning or (unless wanted) progress bar of transformers inside; afterwards all is as it was."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if not progress:
            stack.enter_context(_no_progress_bars())
            sink = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(redirect_stderr(sink))  # the GGUF reader draws a bar that no switch turns off
        for name in _LOGGERS:
            stack.enter_context(_level(logging.getLogger(name), logging.CRITICAL + 1))
        yield


@contextmanager
def _level(logger: logging.Logger, level: int) -> Iterator[None]:
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as transformers_logging

    bars: Any = transformers_logging  # its switches are not annotated
    enabled, hub_enabled = bars.is_progress_bar_enabled(), not are_progress_bars_disabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            bars.enable_progress_bar()
        (enable_progress_bars if hub_enabled else disable_progress_bars)()
