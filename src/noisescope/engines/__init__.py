"""Engines: points in, results out, in the order asked for. What runs them where is all they know.

LocalEngine(bench)                 in this process
Journalled(engine, journal, ...)   the same, but what a journal has is not computed again
"""

from .engine import Engine
from .journalled import Journalled
from .local import LocalEngine

__all__ = ["Engine", "Journalled", "LocalEngine"]
