"""Evaluations without a model: right predictions of two checkpoints that find the same sequences hard."""

import numpy as np

from noisescope.gate.evaluating import Evaluation

TOKENS = 31


def drawn(rng: np.random.Generator, n: int, losses: dict[str, tuple[float, float]]) -> tuple[Evaluation, Evaluation]:
    """Baseline and checkpoint over n sequences; operator -> the share of right predictions that each truly loses.

    What noise turns wrong is drawn token by token; it also turns a tenth as many wrong predictions right, and that
    changes nothing in the mean because as many more are lost.
    """
    ease = rng.beta(4, 6, n)  # how easy each sequence is, for both

    def right() -> np.ndarray:
        return rng.binomial(TOKENS, ease)

    def under_noise(clean: np.ndarray, loss: float) -> np.ndarray:
        gained = rng.binomial(TOKENS - clean, 0.02)
        expected = 0.02 * (TOKENS - clean).sum() / clean.sum()
        return clean - rng.binomial(clean, min(1.0, loss + expected)) + gained

    before, after = right(), right()
    asked = np.full(n, TOKENS)
    return (
        Evaluation(asked, before, {name: under_noise(before, loss) for name, (loss, _) in losses.items()}, 0.03, 9.0),
        Evaluation(asked, after, {name: under_noise(after, loss) for name, (_, loss) in losses.items()}, 0.03, 9.0),
    )
