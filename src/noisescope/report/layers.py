"""Which layer a module or a site belongs to, from its name, and the layers of a report in the order of the model."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

__all__ = [
    "channel_unit",
    "in_model_order",
    "inner_path",
    "label",
    "layer_of_module",
    "layer_of_site",
    "map_layers",
    "outer_operators",
    "parts",
    "runs_of",
]


_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
_BEFORE, _AFTER = ("embed",), ("final_norm", "head")
_ATTENTION = re.compile("attn|attention", re.IGNORECASE)
_BY_HEAD = ("softmax", "matmul", "bmm")
"""operators whose sums the map keeps by head, in attention (`diagnosis.sensing`)"""


def label(layer: int | str) -> str:
    """`L7` for a decoder block, else its name."""
    return f"L{layer}" if isinstance(layer, int) else layer


def map_layers(sections: Mapping[str, Any]) -> list[int | str]:
    """The columns of the map."""
    return in_model_order(cell["layer"] for cell in sections["map"].get("cells", ()))


def in_model_order(layers: Iterable[int | str]) -> list[int | str]:
    """Each once: embed, the blocks, final_norm, head; any other name at the end."""
    found = list(dict.fromkeys(layers))
    blocks = sorted(layer for layer in found if isinstance(layer, int))
    names = [layer for layer in found if isinstance(layer, str)]
    others = sorted(set(names) - {*_BEFORE, *_AFTER})
    return [
        *(name for name in _BEFORE if name in names),
        *blocks,
        *(name for name in _AFTER if name in names),
        *others,
    ]


def runs_of(layers: Iterable[int | str], name: Callable[[str], str] = str) -> Iterator[str]:
    """Layers in words, each run of them as its ends: `L0 to L29` and `head`."""
    for _, run in groupby(enumerate(layers), key=lambda pair: _offset(*pair)):
        first, *rest = [name(label(layer)) for _, layer in run]
        yield f"{first} to {rest[-1]}" if len(rest) > 1 else ", ".join((first, *rest))


def _offset(at: int, layer: int | str) -> int | str:
    """The same for layers that follow each other."""
    return layer - at if isinstance(layer, int) else layer


def layer_of_module(path: str) -> int | None:
    """The number in a module's path: 7 for `model.layers.7.mlp.down_proj`."""
    found = _NUMBER.search(path)
    return int(found[1]) if found and len(found[1]) < 7 else None


def inner_path(path: str) -> str:
    """What follows the number: `mlp.down_proj` for `model.layers.7.mlp.down_proj`, "the block" for the block itself."""
    found = _NUMBER.search(path)
    return path[found.end() + 1 :] or "the block" if found else path


def outer_operators(sections: Mapping[str, Any]) -> dict[str, str]:
    """Which of embed, final_norm and head has which operator; of a norm that two of them have, the later one."""
    order = map_layers(sections)
    cells = [cell for cell in sections["map"].get("cells", ()) if isinstance(cell["layer"], str)]
    return {cell["operator"]: cell["layer"] for cell in sorted(cells, key=lambda cell: order.index(cell["layer"]))}


def layer_of_site(site: str, outer: Mapping[str, str]) -> int | str | None:
    """The layer of `<module path>.<operator>.<call>.<direction>`; outside the blocks its operator tells.

    `outer` is what `outer_operators` found. A norm within the embeddings is known by its name.
    """
    module, operator, _ = parts(site)
    layer = layer_of_module(module)
    if layer is not None:
        return layer
    own_name = module.rpartition(".")[2]
    return "embed" if "embed" in own_name and "embed" in outer.values() else outer.get(operator)


def parts(site: str) -> tuple[str, str, str]:
    """Module path, operator and call of a site."""
    found = site.rsplit(".", 3)
    return (found[0], found[1], found[2]) if len(found) == 4 else (site, "", "")


def channel_unit(module: str, operator: str, layer: int | str) -> str:
    """What the channels of a site are: heads within attention, tokens at the output head, else channels."""
    if operator in _BY_HEAD and _ATTENTION.search(module):
        return "head"
    return "token id" if layer == "head" else "channel"
