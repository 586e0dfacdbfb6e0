"""A check of a checkpoint as files: a page, Markdown for a pull request and JSON, all from its plain sections.

`words` is what is said the same everywhere, `tables` are its tables, `trend` draws a history; then one file a format.
"""

from .files import FILES, render_check, save_check

__all__ = ["FILES", "render_check", "save_check"]
