"""Patterns of module paths: globs, or regular expressions after `re:`."""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from ..errors import InputError

__all__ = ["pattern"]


def pattern(text: str, *, what: str = "modules") -> Callable[[str], bool]:
    """A test of whole module paths, from a glob (`*.mlp.down_proj`) or an expression (`re:.*(up|down)_proj`).

    `what` is the argument that an error names.
    """
    if text.startswith("re:"):
        try:
            compiled = re.compile(text[3:])
        except re.error as error:
            raise InputError(f'{what}: "{text}" is not a regular expression: {error}') from None
        return lambda path: compiled.fullmatch(path) is not None
    return lambda path: fnmatchcase(path, text)
