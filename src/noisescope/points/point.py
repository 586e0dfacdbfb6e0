"""What is asked of a bench, and what it answers."""

from dataclasses import dataclass
from functools import cached_property

from ..measure.comparing import Comparison, Outcome
from ..noise import Noise
from ..specs import Selection

__all__ = ["Finding", "Point", "Result"]


@dataclass(frozen=True)
class Point:
    """Noise at a selection of sites, measured over the bench's data in up to `trials` independent draws.

    With a `tolerance`, trials end as soon as draws agree: once other ones would, at 95%, change the KL of this data by
    no more than that share of it.
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


@dataclass(frozen=True, eq=False)
class Finding:
    """What a point gave, without the clean run: the part that a journal keeps."""

    noisy: Outcome | None
    """what the model did, summed over the trials; None if the point failed"""
    trials: int
    """that were run"""
    injections: int
    """operator calls that were disturbed, over all trials and batches"""
    dose: float
    """the scale really applied"""
    snr_db: float
    """20 log10 of mean abs value over mean abs error, as they were"""
    blocks: int
    """rows x blocks that were run"""
    cost: float
    """the same in forward-pass equivalents"""
    failure: str = ""
    """why there is nothing to compare"""
    final: bool = True
    """False if it may be another time: memory may suffice then, an output that is not finite stays so"""

    @property
    def vanished(self) -> bool:
        """Whether it failed because the noise changed nothing at all."""
        return self.noisy is None and self.dose == 0


@dataclass(frozen=True, eq=False)
class Result:
    """What a point's noise did: the paired comparison with the clean run, or why there is none."""

    point: Point
    clean: Outcome
    finding: Finding

    @cached_property
    def comparison(self) -> Comparison | None:
        """Clean against noisy; None if the point failed."""
        found = self.finding
        return None if found.noisy is None else Comparison(self.clean.repeated(found.trials), found.noisy)
