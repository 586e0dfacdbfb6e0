"""Which layer a module or a site belongs to, from its name, and the layers of a report in the order of the model."""

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["inner_path", "label", "layer_of_module", "layer_of_site", "map_layers"]

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
_BEFORE, _AFTER = ("embed",), ("final_norm", "head")


def label(layer: int | str) -> str:
    """`L7` for a decoder block, else its name."""
    return f"L{layer}" if isinstance(layer, int) else layer


def map_layers(sections: Mapping[str, Any]) -> list[int | str]:
    """The columns of the map: embed, every block, final_norm, head; any other name at the end."""
    found = list(dict.fromkeys(cell["layer"] for cell in sections["map"].get("cells", ())))
    blocks = sorted(layer for layer in found if isinstance(layer, int))
    names = [layer for layer in found if isinstance(layer, str)]
    others = sorted(set(names) - {*_BEFORE, *_AFTER})
    return [
        *(name for name in _BEFORE if name in names),
        *blocks,
        *(name for name in _AFTER if name in names),
        *others,
    ]


def layer_of_module(path: str) -> int | None:
    """The number in a module's path: 7 for `model.layers.7.mlp.down_proj`."""
    found = _NUMBER.search(path)
    return int(found[1]) if found and len(found[1]) < 7 else None


def inner_path(path: str) -> str:
    """What follows the number: `mlp.down_proj` for `model.layers.7.mlp.down_proj`, "the block" for the block itself."""
    found = _NUMBER.search(path)
    return path[found.end() + 1 :] or "the block" if found else path


def layer_of_site(site: str, outer: Mapping[str, int | str]) -> int | str | None:
    """The layer of `<module path>.<operator>.<call>.<direction>`; outside the blocks its operator tells.

    `outer` says which of embed, final_norm and head has which operator.
    """
    module, operator = site_parts(site)
    layer = layer_of_module(module)
    return layer if layer is not None else outer.get(operator)


def site_parts(site: str) -> tuple[str, str]:
    """Module path and operator of a site."""
    parts = site.split(".")
    return (".".join(parts[:-3]), parts[-3]) if len(parts) > 2 else (site, "")
