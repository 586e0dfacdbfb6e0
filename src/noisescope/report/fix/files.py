"""The files of a minimal fix."""

from ..files import Files

__all__ = ["FILES", "render_fix", "save_fix"]

_FILES = Files.of("fix", __package__ or "")
FILES = _FILES.names
"""format -> what its file is called"""
render_fix = _FILES.render
save_fix = _FILES.save
