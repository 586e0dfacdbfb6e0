"""Text to tokens: the built-in text, what a tokenizer puts before every text, long texts, chat messages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import InputError
from ..models.boundary import one_line

__all__ = ["Encoder", "Message", "built_in_text"]

Message = dict[str, str]
"""A turn of a conversation: role and content."""

_PIECE = 1 << 20  # characters; a tokenizer needs some hundred bytes for each while it works


def built_in_text() -> str:
    """The help texts of the language that every Python installation carries: half a million characters of English.

    The text is that of the running Python; other releases differ in a few paragraphs.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:  # some distributions keep it in a package of its own
        raise InputError("no data given, and this Python lacks pydoc_data.topics; pass a text file") from error
    return "\n\n".join(topics[name] for name in sorted(topics))


@dataclass(frozen=True, eq=False)
class Encoder:
    """A Hugging Face tokenizer as it is used here: bare token ids, and apart from them what begins a text."""

    tokenizer: Any

    @cached_property
    def beginning(self) -> tuple[int, ...]:
        """What the tokenizer puts before a text by default: one token for most models that have a BOS, else none."""
        bare, whole = self.encode("a"), self.tokenizer.encode("a")
        starts = [at for at in range(len(whole)) if whole[at : at + len(bare)] == bare]
        return tuple(whole[: starts[0]]) if starts else ()

    def encode(self, text: str) -> list[int]:
        """The tokens of the text alone, without what begins or ends it."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return ids

    def encode_long(self, text: str) -> list[int]:
        """The same for a long text in bounded memory: in pieces that end where a line ends."""
        return [token for piece in _pieces(text) for token in self.encode(piece)]

    @property
    def has_chat_template(self) -> bool:
        """True if conversations are rendered the way the model was trained on."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def chat(self, messages: Sequence[Message], *, reply: bool, where: str) -> list[int]:
        """A conversation as tokens, by the chat template, or else the contents line by line.

        With `reply` it ends where the model's answer starts.
        """
        if not self.has_chat_template:
            return [*self.beginning, *self.encode("\n".join(message["content"] for message in messages))]
        try:
            text = self.tokenizer.apply_chat_template([*messages], tokenize=False, add_generation_prompt=reply)
        except Exception as error:  # a template is a program, and raises what it likes
            raise InputError(f"{where}: refused by the chat template ({one_line(error)})") from error
        return self.encode(text)


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _PIECE:
        end = text.rfind("\n", start, start + _PIECE) + 1 or start + _PIECE
        yield text[start:end]
        start = end
    yield text[start:]
