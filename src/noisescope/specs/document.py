"""A YAML file as keys with their values and lines; it says everything that is wrong with the file, and where.

    model: tests/fixtures/llama          Entry("model", "tests/fixtures/llama", 1)
    layer:
      window_size: 4                     Entry("layer.window_size", "4", 3)
      layers: [9, 10, head]              Entry("layer.layers", ("9", "10", "head"), 4)

Values stay text: what a number is, the reader of the key knows (YAML 1.1 takes 1e-3 for a word, and 1:30 for ninety).
Only the parser of PyYAML is used, never what makes objects of its events. Refused, because nothing here needs them and
much can go wrong with them: tags, anchors and aliases, several documents, keys set twice, deep nesting, large files.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from .. import store
from ..errors import InputError, printable, quoted

__all__ = ["Document", "Entry", "Value", "read_document"]

Value: TypeAlias = str | tuple[str, ...] | None
"""text as it was written, a list of texts, or None for an explicit nothing"""

LARGEST = 64 << 10
DEEPEST = 8
"""levels; a configuration has three"""
_NOTHING = ("", "~", "null", "Null", "NULL")
_YAML_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Entry:
    """A value, its key (with dots between the levels and underscores between the words), and the line it stands in."""

    key: str
    value: Value
    line: int


@dataclass
class Document:
    """What a file says, and what is wrong with it: (line, problem) pairs."""

    label: str
    entries: list[Entry] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)

    def refuse(self, line: int, problem: str, *, key: str = "", column: int | None = None) -> None:
        """Notes a problem with a key, or at a column."""
        self.problems.append((line, f"{self.at(line, key)}{f':{column}' if column else ''}: {problem}"))

    def at(self, line: int, key: str = "") -> str:
        """How messages say where: sweep.yaml:7 layer.window_size."""
        return f"{self.label}:{line}" + (f" {quoted(key)[1:-1]}" if key else "")


def read_document(path: Path) -> Document:
    """The entries of a file; an InputError for one that cannot be read as text."""
    label = printable(str(path))
    text = _decoded(_bytes(path, label), label)
    document = Document(label)
    _Parsing(text, document).run()
    return document


def _bytes(path: Path, label: str) -> bytes:
    try:
        return store.read_whole(path, LARGEST)
    except FileNotFoundError:
        raise InputError(f"{label}: no such file") from None
    except (OSError, ValueError) as error:  # a ValueError for a name with a NUL in it
        raise InputError(f"{label}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _decoded(data: bytes, label: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{label}:{line}: not UTF-8 text (byte 0x{data[error.start]:02x})") from None


class _Stop(Exception):
    """There is no sense in reading on; the reason is noted."""


class _Parsing:
    """One file on its way from the parser's events to entries."""

    def __init__(self, text: str, document: Document) -> None:
        self.text, self.document = text, document
        self.seen: dict[str, int] = {}

    def run(self) -> None:
        try:
            self.events = self._parse()
            self._stream()
        except _Stop:
            pass

    def _parse(self) -> Iterator[yaml.Event]:
        """The parser's events; whatever it raises becomes a problem with its line."""
        loader = None
        try:
            loader = yaml.SafeLoader(self.text)
            while loader.check_event():
                yield loader.get_event()
        except yaml.reader.ReaderError as error:
            line = self.text.count("\n", 0, error.position) + 1
            self._stop(line, f"not text (character {error.character:#04x})")
        except yaml.MarkedYAMLError as error:
            self._stop(*_syntax(error))
        except (ValueError, OverflowError) as error:  # of a \U escape beyond Unicode, of a version of many digits
            self._stop(loader.line + 1 if loader else 1, f"not valid YAML ({printable(str(error))})")

    def _stop(self, line: int, problem: str, column: int | None = None) -> None:
        self.document.refuse(line, problem, column=column)
        raise _Stop

    def _stream(self) -> None:
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._stop(_line(event), "a second document, expected one in a file")
            elif isinstance(event, yaml.NodeEvent):
                self._root(event)

    def _root(self, event: yaml.Event) -> None:
        if not self._accept(event, ""):
            raise _Stop
        if isinstance(event, yaml.MappingStartEvent):
            self._mapping("", 1)
        elif not _is_nothing(event):
            self._stop(_line(event), f"got {_kind(event)}, expected keys with values, such as noise_scale: 0.05")

    def _mapping(self, above: str, depth: int) -> None:
        while not isinstance(key := next(self.events), yaml.MappingEndEvent):
            if self._accept(key, above) and isinstance(key, yaml.ScalarEvent):
                name = f"{above}.{key.value}" if above else key.value
                self._value(name.replace("-", "_"), _line(key), next(self.events), depth)
                continue
            if isinstance(key, yaml.CollectionStartEvent):
                self.document.refuse(_line(key), f"got {_kind(key)}, expected the name of a key", key=above)
            self._skip(key)
            self._skip(next(self.events))

    def _value(self, key: str, line: int, event: yaml.Event, depth: int) -> None:
        if key in self.seen:
            self.document.refuse(line, f"set twice, first in line {self.seen[key]}", key=key)
        self.seen.setdefault(key, line)
        if not self._accept(event, key):
            self._skip(event)
        elif isinstance(event, yaml.MappingStartEvent):
            if depth == DEEPEST:
                self._stop(line, "nested too deeply")
            self._mapping(key, depth + 1)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._list(key, line)
        elif isinstance(event, yaml.ScalarEvent):
            self.document.entries.append(Entry(key, None if _is_nothing(event) else event.value, line))

    def _list(self, key: str, line: int) -> None:
        items, whole = [], True
        while not isinstance(item := next(self.events), yaml.SequenceEndEvent):
            accepted = self._accept(item, key)
            if accepted and isinstance(item, yaml.ScalarEvent):
                items.append(item.value)
                continue
            if accepted:
                self.document.refuse(_line(item), f"got {_kind(item)} in a list, expected single values", key=key)
            self._skip(item)
            whole = False
        if whole:
            self.document.entries.append(Entry(key, tuple(items), line))

    def _accept(self, event: yaml.Event, key: str) -> bool:
        """False, with a problem noted, for what is never used here."""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            self.document.refuse(_line(event), "anchors and aliases are not used here; write the value out", key=key)
            return False
        if tag := getattr(event, "tag", None):
            shown = quoted(tag.replace(_YAML_TAG, "!!"))
            self.document.refuse(_line(event), f"got the tag {shown}, tags are not used here", key=key)
            return False
        return True

    def _skip(self, event: yaml.Event) -> None:
        """Reads on to the end of what begins with this event."""
        depth = 0
        while True:
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth == 0:
                return
            if depth > DEEPEST:
                self._stop(_line(event), "nested too deeply")
            event = next(self.events)


def _line(event: yaml.Event) -> int:
    return int(event.start_mark.line) + 1


def _is_nothing(event: yaml.Event) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.style is None and event.value in _NOTHING


def _kind(event: yaml.Event) -> str:
    if isinstance(event, yaml.ScalarEvent):
        return quoted(event.value)
    return "a list" if isinstance(event, yaml.SequenceStartEvent) else "a table"


def _syntax(error: yaml.MarkedYAMLError) -> tuple[int, str, int]:
    """Line, problem and column of what the parser cannot read."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    words = [error.problem or error.context or "not understood"]
    if error.context and error.context_mark and error.context_mark.line + 1 != line:
        words.append(f"{error.context} from line {error.context_mark.line + 1}")
    if "\\t" in words[0]:
        words.append("indent with spaces")
    return line, f"not valid YAML ({printable('; '.join(words))})", column
