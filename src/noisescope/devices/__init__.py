"""Emulated devices: a model that runs as on other hardware, for those who have only one device.

with emulate(model, "bf16_accumulation") as device:
    model(**inputs)
device.first_changed, device.inert

A device is one row of `rows.DEVICES`, whose arithmetic is in `products`, `functions`, `norms`, `attention` and
`denormals`; `placing` reads where it shall be so, `emulating` plays one, `several` plays many, and faults among them.
"""

from . import attention, denormals, functions, norms, products
from .emulating import EmulatedDevice
from .placing import PlacedDevice, parse_device
from .rows import DEVICES, Device, register
from .several import Emulation, emulate

__all__ = [
    "DEVICES",
    "Device",
    "EmulatedDevice",
    "Emulation",
    "PlacedDevice",
    "emulate",
    "parse_device",
    "register",
]

_ROWS = (products, functions, norms, attention, denormals)  # registered by being imported
