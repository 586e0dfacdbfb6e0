"""The report on paper: a picture for a slide, pages for print."""

from .pictures import render_pdf, render_png

__all__ = ["render_pdf", "render_png"]
