"""A migration plan as files and on the screen: a page, Markdown and JSON, all from its plain sections.

`words` is what is said the same everywhere, `tables` are its tables; then one file a format.
"""

from .files import FILES, render_migration, save_migration
from .screen import screen_lines

__all__ = ["FILES", "render_migration", "save_migration", "screen_lines"]
