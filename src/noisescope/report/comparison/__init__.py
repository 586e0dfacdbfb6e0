"""Two reports: what differs, whether that is more than chance, and how it is shown."""

from .differences import Differences
from .side_by_side import RENDERERS, render_text

__all__ = ["RENDERERS", "Differences", "render_text"]
