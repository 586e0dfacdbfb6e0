"""Points: single measurements, each a pure function of a bench and what is asked, whoever runs it and when.

A bench is a model on data with its clean run; a point says which noise goes where; the result says what came out.
"""

from .bench import Bench, Clean
from .point import Finding, Point, Result

__all__ = ["Bench", "Clean", "Finding", "Point", "Result"]
