"""The files of a comparison."""

from ..files import Files

__all__ = ["FILES", "render_comparison", "save_comparison"]

_FILES = Files.of("comparison", __package__ or "")
FILES = _FILES.names
"""format -> what its file is called"""
render_comparison = _FILES.render
save_comparison = _FILES.save
