"""The model of a verb: the flags that say which and how, and the one call that loads it.

$ noisescope sites
no model given: using SmolLM2-135M-Instruct
"""

from typing import TYPE_CHECKING, Annotated

import typer

from .screen import said

if TYPE_CHECKING:
    from ..models import LoadedModel

__all__ = [
    "Attention",
    "Blocks",
    "Device",
    "Dtype",
    "ModelName",
    "Tokenizer",
    "TrustRemoteCode",
    "load_model",
    "say_which_model",
]

ModelName = Annotated[str | None, typer.Argument(help="Hub id, directory or GGUF file; none: the default model.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="A torch device, or auto.")]
Attention = Annotated[str | None, typer.Option(help="Attention implementation, such as eager or sdpa.")]
Tokenizer = Annotated[str | None, typer.Option(help="Take the tokenizer from there.")]
Blocks = Annotated[str | None, typer.Option(help="Where the blocks are, if they are not found.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code of the model.")]


def say_which_model(name: str | None) -> None:
    """Names the default model, where it is what is meant, before anything that takes long: torch takes seconds."""
    from ..models import DEFAULT

    if name is None:
        said(f"no model given: using {DEFAULT.name}")


def load_model(
    name: str | None,
    *,
    dtype: str,
    device: str,
    attn: str | None,
    tokenizer: str | None = None,
    trust_remote_code: bool = False,
) -> "LoadedModel":
    """The model that a person means, loaded; what takes long is announced on standard error."""
    from ..models import load

    return load(
        name,
        dtype=dtype,
        device=device,
        attn=attn,
        tokenizer=tokenizer,
        trust_remote_code=trust_remote_code,
        say=said,
    )
