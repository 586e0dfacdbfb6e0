"""The panel of a layer: its operators, the outlier channels of its modules, and the channels that matter most.

The template writes all of them, folded, so that they are there without scripts and on paper; pinning shows one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any

from ..figures import figure, number, number_or_none, share
from ..layers import channel_unit, inner_path, label, layer_of_module, layer_of_site, map_layers, outer_operators, parts
from ..rows import Sections, channel_statistics
from .findings import CELL_COLUMNS, OUTLIER_COLUMNS, avalanche_names, cell_row, critical_scale, outliers
from .table import Kind, Table

__all__ = ["panels"]

Layer = int | str


def panels(sections: Sections) -> list[dict[str, Any]]:
    """One a column of the map: a title, facts and tables."""
    outer = outer_operators(sections)
    cells = sections["map"].get("cells", ())
    modules = _by_layer(channel_statistics(sections), layer_of_module)
    sites = _by_layer(sections["map"].get("channels", {}), lambda site: layer_of_site(site, outer))
    return [
        {
            "title": f"Layer {layer}" if isinstance(layer, int) else layer,
            "facts": list(_facts(sections, layer)),
            "tables": [
                _operators([cell for cell in cells if cell["layer"] == layer]),
                _modules(modules[layer]),
                _sites(sites[layer], layer),
            ],
        }
        for layer in map_layers(sections)
    ]


def _by_layer(found: Mapping[str, Any], layer_of: Callable[[str], Layer | None]) -> dict[Layer | None, dict[str, Any]]:
    sorted_out: defaultdict[Layer | None, dict[str, Any]] = defaultdict(dict)
    for name, row in found.items():
        sorted_out[layer_of(name)][name] = row
    return sorted_out


def _facts(sections: Sections, layer: Layer) -> Iterator[tuple[str, str]]:
    metrics, name = sections["metrics"], label(layer)
    row = metrics.get("layers", {}).get(str(layer))
    if row and "failed" in row:
        yield "all of it", f"failed: {row['failed']}"
    elif row:
        how = "from the map" if row["how"] == "map" else row["how"]
        yield "KL of all of it", f"{figure(row['kl'])} nats per token, {how}"
    if threshold := metrics.get("critical_thresholds", {}).get(name):
        how = f", {threshold['how']}" if threshold["how"] != "unknown" else ""
        yield "critical noise scale", critical_scale(threshold) + how
    avalanches = avalanche_names(sections)
    for window, found in sections["layer_analysis"].items():
        inside = isinstance(layer, int) and found["start_layer"] <= layer <= found["end_layer"]
        if inside and window in avalanches:
            yield "avalanche point", window


def _operators(cells: list[Mapping[str, Any]]) -> Table:
    """The most fragile first; before all, what is not finite."""
    ranked = sorted(cells, key=_fragility, reverse=True)
    return Table.of("Its operators", CELL_COLUMNS, map(cell_row, ranked))


def _fragility(cell: Mapping[str, Any]) -> float:
    known = number_or_none(cell["kl"]["value"])
    return inf if known is None else known


def _modules(modules: Mapping[str, Any]) -> Table:
    """Each module with its outlier channels; one that has none says so."""
    rows: list[tuple[str, ...]] = []
    for path, module in modules.items():
        found = sorted(outliers(module), key=lambda outlier: -outlier[1])
        rows += [(inner_path(path), str(channel), f"{number(ratio)}x", *words) for channel, ratio, *words in found]
        if not found:
            rows.append((inner_path(path), f"no outliers; largest ratio {number(module.get('max_ratio'))}x"))
    return Table.of("Outlier channels of its modules", OUTLIER_COLUMNS, rows)


def _sites(sites: Mapping[str, Any], layer: Layer) -> Table:
    columns: dict[str, Kind] = {
        "module": "path",
        "operator, call": "name",
        "counted by": "run",
        "largest shares": "run",
    }
    rows = []
    for site, row in sites.items():
        module, operator, call = parts(site)
        shares = zip(row["channels"], row["shares"], strict=False)
        largest = ", ".join(f"{channel} ({share(part)})" for channel, part in shares)
        rows.append((inner_path(module), f"{operator}.{call}", channel_unit(module, operator, layer), largest))
    most = max((len(row["channels"]) for row in sites.values()), default=0)
    return Table.of(f"The {most} channels that matter most at each site, with their share of it", columns, rows)
