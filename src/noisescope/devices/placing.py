"""Which device, and where: "tf32", "tf32@9.linear", "exp_table@3", "tf32@9.mlp.down_proj.linear".

Without a place a device is so everywhere. A layer alone means all that it computes (for a fault it means the layer's
output); "layer.operator" all calls of that operator in the layer; "layer.module" all that the module computes;
"layer.module.operator" that operator of that module; and the full name of a site means that site.
"""

import re
from dataclasses import dataclass

from ..errors import InputError, NothingMatched, printable, quoted, unknown_name
from ..faults import FAULTS, Fault, Survey, parse_fault
from ..faults.placing import split_layer
from ..sites import Layout, Site
from ..specs import Layer
from .rows import DEVICES, Device

__all__ = ["PlacedDevice", "Where", "parse_device"]

_OTHERWISE = ("matmul", "bmm")
"""what the linear of a module is called if somebody gives it other weights than its own"""


@dataclass(frozen=True)
class PlacedDevice:
    """A device as a person asks for it."""

    device: str
    place: str = ""
    """a layer, layer.operator, layer.module, layer.module.operator, or a site; empty for everywhere"""
    seed: int = 0
    """of a device that has dice"""

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise unknown_name("device", self.device, DEVICES)
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed: got {self.seed}, expected a whole number from 0 to 2^63 - 1")

    @property
    def row(self) -> Device:
        """The row of its device."""
        return DEVICES[self.device]

    def __str__(self) -> str:
        """As it may be written, and read again by `parse_device`."""
        return self.device + f"@{self.place}" * bool(self.place) + f",seed={self.seed}" * (self.seed > 0)


def parse_device(text: str, *, seed: int = 0) -> PlacedDevice | Fault:
    """The device of `name[@place][,seed=..]`, or the fault of `kind[:magnitude]@site[,...]`.

    >>> parse_device("tf32@9.linear").place
    '9.linear'
    >>> print(parse_device("saturation:0.2@15.linear"))
    saturation:0.2@15.linear
    """
    name = re.split("[:@,]", text.strip(), maxsplit=1)[0]
    if name in FAULTS:
        return parse_fault(text, seed=seed)
    if name not in DEVICES:
        raise unknown_name("device or fault", name, [*DEVICES, *FAULTS])
    found = re.fullmatch(r"[^:@,]+(?:@([^:@,]+))?(?:,seed=(\d+))?", text.strip())
    if not found:
        raise InputError(f"emulate: got {quoted(text)}, expected {name}[@layer[.module][.operator]][,seed=..]")
    place, own_seed = found.groups()
    return PlacedDevice(name, place or "", seed if own_seed is None else int(own_seed))


class Where:
    """The calls of a model at which a device is what it is; an error if the model has none such.

    The survey is asked what there is at all, so a place that nothing runs through is seen at once.
    """

    def __init__(self, asked: PlacedDevice, layout: Layout, survey: Survey) -> None:
        self._layer, self._rest = split_layer(asked.place, layout, what="emulate")
        self._own = {site.module for site in survey.sites if site.operator == "linear" and survey.is_leaf(site.module)}
        here = {site.operator for site in survey.sites if self.holds(site)}
        if not here:
            raise NothingMatched(_nothing(asked.place, self._layer, survey))
        if not asked.row.is_at(here):
            raise NothingMatched(f"emulate: {asked.device} changes nothing at {asked.place} ({' '.join(sorted(here))})")

    def holds(self, site: Site) -> bool:
        """True for a call that is computed there."""
        if self._layer is not None and site.layer != self._layer:
            return False
        if not self._rest or self._names(site, site.operator):
            return True
        return site.module in self._own and site.operator in _OTHERWISE and self._names(site, "linear")

    def _names(self, site: Site, operator: str) -> bool:
        path = f".{site.module}.{operator}"
        if self._layer is None:  # the full name of a site, with or without its call
            return f".{self._rest}" in (path, f"{path}.{site.call}", f"{path}.{site.call}.forward")
        return path.endswith(f".{self._rest}") or f".{self._rest}." in path

    def may_hold(self, layer: Layer | None, module: str, operator: str) -> bool:
        """True unless no call of that operator by that module, or step of its attention, is there."""
        if self._layer is None:
            return not module or self._rest.startswith(f"{module}.")
        return layer == self._layer and (operator == "attention" or self.holds(Site(layer, operator, module)))


def _nothing(place: str, layer: Layer | None, survey: Survey) -> str:
    """What to say of a place that the model does not have."""
    if layer is None:
        return f"emulate: no site {quoted(place)}; `noisescope sites --all` lists them"
    names = sorted({site.operator for site in survey.sites if site.layer == layer})
    if not names:
        return f"emulate: the model computes nothing in {layer}"
    operator = place.rpartition(".")[2]
    if operator in names:
        return f"emulate: {printable(place)}: no such module of layer {layer} computes {operator}"
    return f"emulate: {unknown_name(f'operator of layer {layer}', operator, names)}"
