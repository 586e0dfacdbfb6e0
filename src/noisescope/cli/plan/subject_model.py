"""The model that a report is of, loaded again: the same weights in the same dtype, or one line that says no."""

from typing import TYPE_CHECKING

from ...errors import ModelError
from ..loading import load_model, say_which_model
from .subject import Subject

if TYPE_CHECKING:
    from ...models import LoadedModel

__all__ = ["load_subject"]


def load_subject(subject: Subject, *, device: str | None, attn: str | None, trust_remote_code: bool) -> "LoadedModel":
    """The report's model, on the device and with the attention of the report unless others are named."""
    sections = subject.report.sections
    where, config = sections["environment"], sections["config"]
    name = subject.model or None
    say_which_model(name)
    loaded = load_model(
        name,
        dtype=where["dtype"],
        device=device or where["device"],
        attn=attn or where["attention"],
        tokenizer=subject.tokenizer,
        trust_remote_code=trust_remote_code,
    )
    from ...keys import fingerprint_model

    if (expected := config.get("weights")) and fingerprint_model(loaded.model) != expected:
        raise ModelError(
            f"{loaded.name}: is not the model of the report ({config['model']}): the weights differ; name the right "
            "one with --model, or diagnose this one"
        )
    return loaded
