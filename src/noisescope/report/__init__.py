"""The report: the one object that everything is rendered from, and its renderers, one file a format."""

from .report import Report
from .table import MapTable

__all__ = ["MapTable", "Report"]
