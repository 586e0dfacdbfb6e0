"""The files of a check."""

from ..files import Files

__all__ = ["FILES", "render_check", "save_check"]

_FILES = Files.of("check", __package__ or "")
FILES = _FILES.names
"""format -> what its file is called"""
render_check = _FILES.render
save_check = _FILES.save
