"""Extension of griffe, which reads the docstrings for the reference: examples in them are shown as code.

Markdown takes a line that begins with `>>>` for a quotation; a fence around the example says what it is.
"""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^[ ]*(?:>>>|\.\.\. ).*\n?(?:^[ ]*(?!>>>)\S.*\n?)*)+", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts fences around the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for whatever it has read."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(example: re.Match[str]) -> str:
    first = example[0].splitlines()[0]
    indent = first[: len(first) - len(first.lstrip())]
    return f"{indent}```pycon\n{example[0].rstrip()}\n{indent}```\n"
