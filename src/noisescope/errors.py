"""Every error a user can meet, as one tree; each class carries the exit code of the command line.

    NoisescopeError            1
    ├── InputError             2   a value, name or file that cannot be meant (also a ValueError)
    ├── NothingMatched         3   a selection that is well formed but touches nothing (also a LookupError)
    │   ├── HiddenOperator     3   the operator runs inside a kernel that cannot be opened
    │   ├── CompiledModel      3   compiled code that injection cannot reach
    │   └── DoseVanished       3   noise was applied and rounding swallowed all of it
    ├── ModelError             4   a model that cannot be found, loaded or understood
    │   └── NonFinite          4   a model that computes NaN or infinity
    ├── StoreError             5   a file that cannot be written, or is in use
    ├── MissingExtra           6   an optional dependency that is not installed
    ├── BudgetExceeded         2   a capture that would not fit its memory budget (also an InputError)
    ├── Interrupted          130   a run that a person or the system stopped
    └── ExitOrder              1   an injection closed in the wrong order, or before the backward pass that needs it

A message is one line: what, where, got, expected, fix. An InputError may carry several, one for each thing that is
wrong, so that a person can put all of it right at once.
"""

__all__ = [
    "BudgetExceeded",
    "CompiledModel",
    "DoseVanished",
    "ExitOrder",
    "HiddenOperator",
    "InputError",
    "Interrupted",
    "MissingExtra",
    "ModelError",
    "NoisescopeError",
    "NonFinite",
    "NothingMatched",
    "StoreError",
    "printable",
    "quoted",
    "unknown_name",
]

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST_QUOTE = 80


class NoisescopeError(Exception):
    """The root of the tree: catch it to catch everything noisescope raises on purpose."""

    exit_code = 1

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, one line each."""
        return (str(self),)


class InputError(NoisescopeError, ValueError):
    """A value, name or file that cannot be meant; `InputError(*problems)` where there are several of them."""

    exit_code = 2

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, one line each."""
        return tuple(map(str, self.args))

    def __str__(self) -> str:
        return "\n".join(self.problems)


class NothingMatched(NoisescopeError, LookupError):
    """A selection that is well formed but touches nothing in this model."""

    exit_code = 3


class HiddenOperator(NothingMatched):
    """The selected operator runs inside a fused kernel that cannot be computed in steps."""


class CompiledModel(NothingMatched):
    """The model is compiled, so hooks and modes set now would silently do nothing."""


class DoseVanished(NothingMatched):
    """Noise was applied at a scale above zero and no element changed."""


class ModelError(NoisescopeError):
    """A model that cannot be found, loaded or understood."""

    exit_code = 4


class NonFinite(ModelError):
    """A model whose output is not finite; the message names the first site that is not."""


class StoreError(NoisescopeError):
    """A file that cannot be written, or is in use by another process."""

    exit_code = 5


class MissingExtra(NoisescopeError):
    """An optional dependency that is not installed."""

    exit_code = 6


class Interrupted(NoisescopeError):
    """A run that Ctrl-C or SIGTERM stopped; the message says how to go on."""

    exit_code = 130


class BudgetExceeded(InputError):
    """A capture that would not fit its memory budget; raised before the forward pass."""


class ExitOrder(NoisescopeError):
    """An injection closed in another order than it was opened, or before the backward pass that needs it."""


def quoted(value: object) -> str:
    """A value as a message shows it: text in double quotes, short, and with nothing in it that a terminal obeys.

    >>> print(quoted("three"), quoted("\\x1b[2J"), quoted(0.5))
    "three" "\\x1b[2J" 0.5
    """
    text = value if isinstance(value, str) else repr(value)
    plain = printable(text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "...")
    return f'"{plain}"' if isinstance(value, str) else plain


def printable(text: str) -> str:
    """The text with everything that a terminal would obey, or that would begin a new line, spelled out."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def unknown_name(what: str, got: object, valid: Iterable[str]) -> InputError:
    """One line for a misspelt name, with the nearest valid one and the whole list.

    >>> print(unknown_name("operator", "sofmax", ["linear", "softmax"]))
    unknown operator "sofmax", did you mean "softmax"? (linear softmax)
    """
    names = list(valid)
    near = get_close_matches(str(got), names, n=1)
    hint = f', did you mean "{near[0]}"?' if near else ""
    return InputError(f"unknown {what} {quoted(str(got))}{hint} ({' '.join(names)})")
