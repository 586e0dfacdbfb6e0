"""The files of a migration plan."""

from ..files import Files

__all__ = ["FILES", "render_migration", "save_migration"]

_FILES = Files.of("migration", __package__ or "")
FILES = _FILES.names
"""format -> what its file is called"""
render_migration = _FILES.render
save_migration = _FILES.save
