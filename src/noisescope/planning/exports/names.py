"""Module paths as the patterns of tools mean them literally: nothing in a name is a pattern."""

import glob
import re

__all__ = ["PLAIN", "as_glob", "as_regex", "named"]

PLAIN = re.compile(r"[A-Za-z_]\w*(\.\w+)+", re.ASCII)
"""a path as models have them; its only sign that a pattern knows is the dot, and no name of a class has one"""


def as_regex(path: str) -> str:
    """A regular expression that matches this path alone, from its beginning."""
    return f"^{re.escape(path)}$"


def as_glob(path: str) -> str:
    """A shell pattern that matches this path alone."""
    return glob.escape(path)


def named(path: str, pattern: str) -> str:
    """The path itself if it is plain, else the pattern: for tools that take both, where people read the file."""
    return path if PLAIN.fullmatch(path) else pattern
