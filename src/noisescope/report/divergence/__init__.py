"""A comparison of two traces as files: a page, Markdown and JSON, all from its plain sections.

`words` is what is said the same everywhere, `growth` the plot of the error through depth, `tables` the rest of the
page; then one file a format.
"""

from .files import FILES, render_comparison, save_comparison
from .loading import load_comparison
from .notebook import render_comparison_summary

__all__ = ["FILES", "load_comparison", "render_comparison", "render_comparison_summary", "save_comparison"]
