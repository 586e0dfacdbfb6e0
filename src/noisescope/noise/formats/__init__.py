"""Number formats: what a tensor becomes in 16, 8, 6 and 4 bits, bit for bit.

The way of a value: a format (`format`) splits a tensor into blocks, chooses their scales (`scales`), and rounds every
element to its grid (`grids`). `quality` says how well that went; `rounding` makes noise models of formats.
"""

from .format import FORMATS, Format, parse_format
from .quality import Quality, quality, sqnr_db
from .rounding import NumberFormat, format_noise

__all__ = ["FORMATS", "Format", "NumberFormat", "Quality", "format_noise", "parse_format", "quality", "sqnr_db"]
