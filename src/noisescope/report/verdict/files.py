"""The files of a verdict."""

from ..files import Files

__all__ = ["FILES", "render_verdict", "save_verdict"]

_FILES = Files.of("verdict", __package__ or "")
FILES = _FILES.names
"""format -> what its file is called"""
render_verdict = _FILES.render
save_verdict = _FILES.save
