"""SmoothQuant: the same function with smaller outliers, folded into the weights.

The way of the data: groups are found by watching a block run (`finding`, `proportions`, over `replaying`) and proved on
it; calibration data says how large their channels are (`calibrating`); an alpha is chosen by the error it leaves
(`scaling`) and folded (`groups`); logits say that the function is the same (`logits`); the result is a model
(`smoothed`, `saving`).
"""

from .smoothed import Smoothed
from .smoothing import smooth

__all__ = ["Smoothed", "smooth"]
