"""What is asked of a bench, and what it answers."""

from dataclasses import dataclass

from ..measure.comparing import Comparison
from ..noise import Noise
from ..specs import Selection

__all__ = ["Point", "Result"]


@dataclass(frozen=True)
class Point:
    """Noise at a selection of sites, measured over the bench's data in up to `trials` independent draws.

    With a `tolerance`, trials end as soon as the half-width of the KL's interval is within that share of the KL.
    """

    selection: Selection
    noise: Noise
    seed: int = 0
    trials: int = 1
    tolerance: float = 0.0
    scale: float | None = None
    """in place of the noise's own; the draws are the same at every scale"""

    @property
    def noise_scale(self) -> float:
        """The scale asked for."""
        return self.noise.scale if self.scale is None else self.scale


@dataclass(frozen=True)
class Result:
    """What a point's noise did: the paired comparison with the clean run, or why there is none."""

    point: Point
    comparison: Comparison | None
    """None if the point failed"""
    injections: int
    """operator calls that were disturbed, over all trials and batches"""
    dose: float
    """the scale really applied"""
    snr_db: float
    """20 log10 of mean abs value over mean abs error, as they were"""
    cost: float
    """forward-pass equivalents"""
    failure: str = ""
