"""The files of a precision plan."""

from ..files import Files

__all__ = ["FILES", "render_precision", "save_precision"]

_FILES = Files.of("precision", __package__ or "")
FILES = _FILES.names
"""format -> what its file is called"""
render_precision = _FILES.render
save_precision = _FILES.save
