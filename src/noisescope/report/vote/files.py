"""The files of a vote. Renderers are imported when they are asked for."""

from ...store.encoding import encode
from ..files import Files
from ..rows import Sections

__all__ = ["FILES", "render_vote", "save_vote"]


def _markdown(sections: Sections) -> str:
    from .markdown import render_markdown

    return render_markdown(sections)


def _page(sections: Sections) -> str:
    from .page import render_page

    return render_page(sections)


_FILES = Files("vote", {"md": _markdown, "html": _page, "json": encode})
FILES = _FILES.names
"""format -> what its file is called"""
render_vote = _FILES.render
save_vote = _FILES.save
