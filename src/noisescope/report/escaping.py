r"""Text from models, data and edited files, made inert: shown as it is, never acting as markup.

    visible("a\nb\u202e")    a\nb\u202e        what cannot be seen, or turns a line round, as its escape
    code("@you | #1")       `@you \x7c #1`    nothing in a code span is a link, a mention or HTML
    prose("up to 494x")     up to 494x       a sentence; a code span as soon as it holds anything else

On GitHub, mentions, issue numbers and bare addresses become links after Markdown was rendered, so that escaping with
backslashes or entities does not stop them. Code spans do. The two characters that end a code span or a table cell,
` and |, are written as escapes inside one.
"""

import re
import unicodedata
from typing import Any

__all__ = ["code", "fence", "prose", "short", "visible"]

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SENTENCE = re.compile(r"[A-Za-z0-9 ,.;:%()/='\"+\-<>\[\]_*^?!|\u2212\u2013]*")
_LINK = re.compile(r"[:/]/|www\.|\bGH-|mailto:|xmpp:|:\w+:|\b[0-9a-f]{7,}\b|]\(|]:", re.IGNORECASE)
_MARKUP = re.compile(r"([\[\]_*|])")
_ENTITIES = {"<": "&lt;", ">": "&gt;"}


def visible(text: Any, *, longest: int | None = None) -> str:
    """One line in which every character can be seen, cut where it is longer than that."""
    whole = str(text)
    if longest is None or len(whole) <= longest:
        return "".join(map(_seen, whole))
    return "".join(map(_seen, whole[:longest]))[: longest - 3] + "..."


def short(text: Any) -> str:
    """One line that a terminal can show."""
    return visible(text, longest=160)


def code(text: Any, *, longest: int = 120) -> str:
    """A Markdown code span, also inside a table."""
    inside = visible(text, longest=longest).replace("`", r"\x60").replace("|", r"\x7c")
    return f"`{inside}`" if inside.strip() else "(empty)"


def prose(text: Any, *, longest: int = 300) -> str:
    """A sentence as Markdown, not at the start of a line: plain where it is harmless, else a code span."""
    line = visible(text, longest=longest)
    if not _SENTENCE.fullmatch(line) or _LINK.search(line):
        return code(text, longest=longest)
    escaped = _MARKUP.sub(r"\\\1", line)
    return "".join(_ENTITIES.get(character, character) for character in escaped)


def fence(command: str, *, indent: str = "") -> str:
    """A Markdown block with a command to copy, on one line; its fence is longer than any in it."""
    line = visible(command, longest=1000)
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{indent}{ticks}sh\n{indent}{line}\n{indent}{ticks}"


def _seen(character: str) -> str:
    if character in " \t":
        return " "
    kind = unicodedata.category(character)
    if kind == "Zs":
        return " "
    return ascii(character)[1:-1] if kind in _UNSEEN else character
