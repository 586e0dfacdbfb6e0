"""A precision plan as files and on the screen: a page, Markdown and JSON, all from its plain sections.

`words` is what is said the same everywhere, `tables` are its tables, `trade_off` its picture; then one file a format.
"""

from .files import FILES, render_precision, save_precision
from .screen import screen_lines

__all__ = ["FILES", "render_precision", "save_precision", "screen_lines"]
