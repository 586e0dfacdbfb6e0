"""Rows to samples, by the names of their fields.

    fields                                         sample
    text                                           a text
    prompt, reward_model.ground_truth              a conversation to answer with a number
    prompt                                         a text, or a conversation read as one
    query, choices, gold                           a choice
    question, choices, answer or answerKey         a choice (index, letter or label; choices may be {text, label})
    question, answer (ends in `#### number`)       a question to answer with a number
    context, continuation                          a text whose end is predicted

The first row decides for all; a row that lacks its fields is named. To read another layout, add a row to `LAYOUTS`.
"""

import json
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import isnan
from string import ascii_uppercase
from typing import Any, TypeAlias

from ..errors import InputError
from ..models.boundary import one_line
from .numbers import reference_number
from .reading import Row, Rows
from .texts import Message

__all__ = ["LAYOUTS", "Choice", "Continued", "Conversation", "Layout", "Question", "Sample", "Text", "samples"]


@dataclass(frozen=True)
class Text:
    """Every token after the first is predicted."""

    where: str
    text: str


@dataclass(frozen=True)
class Conversation:
    """The same for chat messages."""

    where: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Continued:
    """The tokens of the continuation are predicted."""

    where: str
    context: str
    continuation: str


@dataclass(frozen=True)
class Choice:
    """One of the continuations is right."""

    where: str
    context: str
    choices: tuple[str, ...]
    gold: int


@dataclass(frozen=True)
class Question:
    """Answered by writing; the answer's last number counts. `plain` is the prompt where there is no chat template."""

    where: str
    messages: tuple[Message, ...]
    plain: str
    answer: str
    number: Decimal


Sample: TypeAlias = Text | Conversation | Continued | Choice | Question


@dataclass(frozen=True)
class Layout:
    """Fields that a row must have, and what sample they make."""

    fields: tuple[str, ...]
    read: Callable[[Row], Sample]
    fits: Callable[[Mapping[str, Any]], bool] | None = None
    """what must hold besides, for the first row to decide on this layout"""


def samples(rows: Rows, field: str | None = None) -> Iterator[Sample]:
    """The samples of the rows, in their order; `field` names the text (or messages) and leaves the rest unread."""
    layout: Layout | None = None if field is None else Layout((field,), lambda row: _readable(row, field))
    for row in rows.rows:
        if layout is None and (layout := _layout(row)) is None:
            raise _unknown(row, rows)
        lacking = [name for name in layout.fields if name not in row.values]
        if lacking and field is None and _layout(row) is None:
            raise _unknown(row, rows)
        if lacking:
            before = "" if field is not None else ", which the rows before it have"
            raise InputError(f'{row.where}: no field "{one_line(lacking[0])}"{before} (has: {_names(row)})')
        yield layout.read(row)


def _layout(row: Row) -> Layout | None:
    for layout in LAYOUTS:
        if all(name in row.values for name in layout.fields) and (layout.fits is None or layout.fits(row.values)):
            return layout
    return None


def _unknown(row: Row, rows: Rows) -> InputError:
    texts = [str(name) for name, value in row.values.items() if isinstance(value, str)]
    fix = rows.naming.replace("{field}", one_line(texts[0]) if texts else "FIELD")
    return InputError(f'{row.where}: no field "text" or "prompt" (has: {_names(row)}); {fix}')


def _names(row: Row) -> str:
    return one_line(", ".join(map(str, row.values))) if row.values else "none"


# --- values of fields, checked ----------------------------------------------------------------------------------


def _string(row: Row, name: str, value: object = None) -> str:
    """The text of a field (or of a value inside it), which a tokenizer can read."""
    value = row.values[name] if value is None else value
    if not isinstance(value, str):
        raise InputError(f"{row.where}: {name}: got {_kind(value)}, expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{row.where}: {name}: half of a surrogate pair at character {error.start}") from error
    return value


def _filled(row: Row, name: str, value: object = None) -> str:
    text = _string(row, name, value)
    if not text.strip():
        raise InputError(f"{row.where}: {name}: empty, expected text")
    return text


def _messages(row: Row, name: str) -> tuple[Message, ...]:
    value = row.values[name]
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise InputError(f"{row.where}: {name}: got {_kind(value)}, expected text or a list of chat messages")
    messages = []
    for at, message in enumerate(value):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise InputError(f"{row.where}: {name}[{at}]: got {_kind(message)}, expected role and content")
        parts = {part: _string(row, f"{name}[{at}].{part}", message[part] or "") for part in ("role", "content")}
        messages.append(parts)
    return tuple(messages)


def _kind(value: object) -> str:
    if value is None or (isinstance(value, float) and isnan(value)):  # pandas has nan where there is nothing
        return "nothing"
    if isinstance(value, (list, tuple, dict)) and not value:
        return "an empty one"
    return f"{type(value).__name__} {reprlib.repr(value)}"


# --- one function per layout ------------------------------------------------------------------------------------


def _readable(row: Row, name: str) -> Text | Conversation:
    value = row.values[name]
    if isinstance(value, str) or value is None:
        return Text(row.where, _string(row, name))
    return Conversation(row.where, _messages(row, name))


def _scored_prompt(row: Row) -> Question:
    scores = row.values["reward_model"]
    if isinstance(scores, str):
        try:
            scores = json.loads(scores)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{row.where}: reward_model: not valid JSON ({one_line(error)[:80]})") from error
    if not isinstance(scores, Mapping) or "ground_truth" not in scores:
        has = one_line(", ".join(map(str, scores))) if isinstance(scores, Mapping) else _kind(scores)
        raise InputError(f'{row.where}: reward_model: no field "ground_truth" (has: {has})')
    answer = scores["ground_truth"]
    if isinstance(row.values["prompt"], str):
        messages: tuple[Message, ...] = ({"role": "user", "content": _filled(row, "prompt")},)
    else:
        messages = _messages(row, "prompt")
    plain = "\n".join(message["content"] for message in messages)
    number = _number(row, "reward_model.ground_truth", answer)
    return Question(row.where, messages, plain + "\n", str(answer), number)


def _question(row: Row) -> Question:
    question, answer = _filled(row, "question"), row.values["answer"]
    number = _number(row, "answer", answer)
    message = {"role": "user", "content": question}
    return Question(row.where, (message,), f"Question: {question}\nAnswer:", str(answer), number)


def _number(row: Row, name: str, answer: object) -> Decimal:
    number = reference_number(answer)
    if number is None:
        raise InputError(f'{row.where}: {name}: got {_kind(answer)}, expected a number or text that ends in "#### 18"')
    return number


def _has_number(values: Mapping[str, Any]) -> bool:
    return reference_number(values["answer"]) is not None


def _query(row: Row) -> Choice:
    choices, labels = _choices(row)
    return Choice(row.where, _filled(row, "query"), choices, _gold(row, "gold", labels, len(choices)))


def _asked(key: str) -> Callable[[Row], Choice]:
    def read(row: Row) -> Choice:
        choices, labels = _choices(row)
        context = f"Question: {_filled(row, 'question')}\nAnswer:"
        return Choice(row.where, context, choices, _gold(row, key, labels, len(choices)))

    return read


def _choices(row: Row) -> tuple[tuple[str, ...], Sequence[object]]:
    """The choices, and their labels where they have any."""
    value = row.values["choices"]
    parts = value if isinstance(value, Mapping) else {"text": value}
    given, labels = parts.get("text"), parts.get("label")
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) < 2:
        raise InputError(f"{row.where}: choices: got {_kind(given)}, expected a list of two or more")
    choices = tuple(_filled(row, f"choices[{at}]", choice or "") for at, choice in enumerate(given))
    return choices, labels if isinstance(labels, list) else ()


def _gold(row: Row, name: str, labels: Sequence[object], count: int) -> int:
    """The index of the right choice, from a label, an index from 0 or a letter from A."""
    value = row.values[name]
    if value in labels:
        return labels.index(value)
    index = -1
    if isinstance(value, str) and value.strip().isdecimal():
        index = int(value.strip()[:9])
    elif isinstance(value, str) and len(value.strip()) == 1:
        index = ascii_uppercase.find(value.strip().upper())
    elif (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer()):
        index = int(value)
    if not 0 <= index < count:
        letters = f" or A to {ascii_uppercase[count - 1]}" if count <= len(ascii_uppercase) else ""
        known = " ".join(map(str, labels)) if labels else f"0 to {count - 1}{letters}"
        raise InputError(f"{row.where}: {name}: got {_kind(value)}, expected {one_line(known)} ({count} choices)")
    return index


def _continued(row: Row) -> Continued:
    return Continued(row.where, _filled(row, "context"), _filled(row, "continuation"))


LAYOUTS: tuple[Layout, ...] = (
    Layout(("text",), lambda row: _readable(row, "text")),
    Layout(("prompt", "reward_model"), _scored_prompt),
    Layout(("prompt",), lambda row: _readable(row, "prompt")),
    Layout(("query", "choices", "gold"), _query),
    Layout(("question", "choices", "answer"), _asked("answer")),
    Layout(("question", "choices", "answerKey"), _asked("answerKey")),
    Layout(("question", "answer"), _question, _has_number),
    Layout(("context", "continuation"), _continued),
)
"""in the order in which they are tried"""
