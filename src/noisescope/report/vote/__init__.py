"""A vote over several traces as files: a page, Markdown and JSON, all from its plain sections.

`words` is what is said the same everywhere, `tables` are its tables; then one file a format.
"""

from .files import FILES, save_vote

__all__ = ["FILES", "save_vote"]
