"""A verdict on a device as files: a page, Markdown and JSON, all from its plain sections.

`cells` is the evidence by layer and operator, `words` what is said the same everywhere; then one file a format.
"""

from .files import FILES, render_verdict, save_verdict
from .notebook import render_verdict_summary
from .words import truth_line

__all__ = ["FILES", "render_verdict", "render_verdict_summary", "save_verdict", "truth_line"]
