"""The files of a vote."""

from ..files import Files

__all__ = ["FILES", "render_vote", "save_vote"]

_FILES = Files.of("vote", __package__ or "")
FILES = _FILES.names
"""format -> what its file is called"""
render_vote = _FILES.render
save_vote = _FILES.save
