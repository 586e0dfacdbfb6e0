"""A minimal fix as files and on the screen: a page, Markdown and JSON, all from its plain sections."""

from .files import FILES, render_fix, save_fix
from .screen import screen_lines

__all__ = ["FILES", "render_fix", "save_fix", "screen_lines"]
