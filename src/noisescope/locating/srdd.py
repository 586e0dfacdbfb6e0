"""The `srdd` method: layers ranked by how oddly they answer to noise, on the suspect device alone.

Relative Gaussian noise goes on the core operators of one layer after the other; the answer is KL(clean || noisy) of the
last token, a clean run on the same device being the reference. With S(s) a layer's mean answer over prompts and trials
at scale s, four probes make one number each:

    A  monotonicity      Spearman's rho^2 of S(s) against s, over five scales
    B  smoothness        |log S[i] - (log S[i-1] + log S[i+1]) / 2| at scale 0.05, one neighbour at the ends
    C  input variation   std / mean over the prompts, at scale 0.05
    D  compression       slope of the least-squares line through S(s), s = 0.02, 0.05, 0.10

    score = max(0, -zA) + 1.5 max(0, zB) + max(0, zC) + 1.5 max(0, -zD),    z = (x - mean) / std over the layers

Some layer is always first, on a healthy device too: this ranks, and no threshold comes with it, so that the verdict is
always inconclusive. To have a device judged, use another method; this one is here so that its limits can be measured.

Where attention is a fused kernel, the layer with the noise computes it in steps, so that its products are in reach.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..capturing.finite import is_finite
from ..diagnosis.prompts import open_prompts
from ..errors import InputError, ModelError, NonFinite
from ..faults import FaultSimulator
from ..injection import Injection
from ..measure.metrics import compute_kl_divergence
from ..measure.rank_correlation import spearman
from ..noise import RelativeGaussian
from ..operators import OPERATORS
from ..sites import Layout
from ..specs import Layer, Selection
from .host import on_host
from .sections import sections_of, shape_of
from .verdict import Evidence, Verdict

__all__ = ["PROMPTS", "SCALES", "TRIALS", "LayerScore", "five_prompts", "rank_layers", "score_layers"]

SCALES = (0.01, 0.02, 0.05, 0.10, 0.15)
TRIALS = 3
PROMPTS = 5
CORE = tuple(name for name, row in OPERATORS.items() if row.core)
MISSING = "srdd only ranks layers, and one is always first: it cannot call a device healthy or faulty"
_MIDDLE = SCALES.index(0.05)
_SLOPE = [SCALES.index(scale) for scale in (0.02, 0.05, 0.10)]
_Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class LayerScore:
    """What the four probes say of one layer, and their sum in units of the spread over layers."""

    layer: int
    score: float
    monotonicity: float
    smoothness: float
    input_variation: float
    compression: float


def rank_layers(
    model: nn.Module,
    inputs: dict[str, Any],
    *,
    layout: Layout,
    simulators: Sequence[FaultSimulator] = (),
    seed: int = 0,
    progress: Callable[[str, int], Callable[[], None]],
    name: str | None = None,
    precision_mode: str | None = None,
) -> Verdict:
    """An inconclusive verdict whose `sections["srdd"]` has the layers, the oddest first.

    Takes 1 + 15 forward passes a layer over five prompts, whatever the budget. Simulated faults must be in force.
    """
    inputs = five_prompts(inputs, model)
    responses, forwards = _measure(model, inputs, layout, seed, progress)
    ranking = sorted(score_layers(responses), key=lambda found: -found.score)
    evidence = Evidence("srdd", _sentence(ranking), float(sum(forwards.values())))
    place: dict[Layer | None, int] = {found.layer: rank for rank, found in enumerate(ranking, 1)}
    config = {
        "model": name or type(model).__name__,
        "method": "srdd",
        "runs": TRIALS,
        "budget": None,
        "precision_mode": precision_mode,
        "shape": shape_of(inputs),
        "reference": None,
        "seed": seed,
    }
    sections = sections_of(
        "inconclusive",
        model=model,
        config=config,
        evidence=[evidence],
        by_stage={stage: float(count) for stage, count in forwards.items()},
        coverage={"checked": 0, "layers": len(layout.blocks), "unjudged": [], "hidden": []},
        missing=[MISSING],
        simulators=simulators,
    )
    for truth in sections["truth"]:
        truth["srdd_rank"] = place.get(truth["layer"])
    sections["srdd"] = [asdict(found) for found in ranking]
    return Verdict("inconclusive", (), (evidence,), (MISSING,), sections=sections)


def _sentence(ranking: Sequence[LayerScore]) -> str:
    first = ", ".join(f"{found.layer} ({found.score:.2f})" for found in ranking[:3])
    return f"{len(ranking)} layers ranked by their answer to noise; first {first}"


# --- five prompts -----------------------------------------------------------------------------------------------


def five_prompts(inputs: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Five rows of equal length: the inputs themselves, or the longest windows of their tokens of which there are five.

    Equal rows count once. Whatever else came with tokens that have to be cut is left out.
    """
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if not isinstance(ids, Tensor):
        raise InputError("prompts: got inputs without input_ids, expected token ids for five prompts")
    known = mask.bool() if isinstance(mask, Tensor) else torch.ones_like(ids, dtype=torch.bool)
    rows = list(dict.fromkeys(tuple(row[there].tolist()) for row, there in zip(ids, known, strict=True)))
    if len(rows) == len(ids) == PROMPTS and bool(known.all()):
        return inputs
    for length in range(max(map(len, rows), default=0), 1, -1):
        windows = list(dict.fromkeys(_windows(rows, length)))
        if len(windows) >= PROMPTS:
            return open_prompts(torch.tensor(windows[:PROMPTS]), model)
    raise InputError(
        f"prompts: got {sum(map(len, rows))} tokens in {len(rows)} rows, expected enough for five different prompts "
        "of at least two tokens each"
    )


def _windows(rows: Sequence[tuple[int, ...]], length: int) -> Iterator[tuple[int, ...]]:
    for row in rows:
        for start in range(0, len(row) - length + 1, length):
            yield row[start : start + length]


# --- answers to noise -------------------------------------------------------------------------------------------


def _measure(
    model: nn.Module, inputs: dict[str, Any], layout: Layout, seed: int, progress: Callable[[str, int], Any]
) -> tuple[_Array, dict[str, int]]:
    """KL in nats (layers x scales x trials x prompts), and the forward passes that it took.

    Every run draws its own noise: no two share a trial number at one layer.
    """
    step = progress("layers", len(layout.blocks))
    clean, forwards = _last_logits(model, inputs, "the clean run"), {"clean": 1, "srdd": 0}
    found = np.empty((len(layout.blocks), len(SCALES), TRIALS, len(clean)))
    for layer in range(len(layout.blocks)):
        selection = Selection((layer,), CORE)
        for at, scale in enumerate(SCALES):
            for trial in range(TRIALS):
                noise, number = RelativeGaussian(scale), at * TRIALS + trial
                with Injection(noise, selection, layout=layout, seed=seed, trial=number):
                    noisy = _last_logits(model, inputs, f"layer {layer} with noise of scale {scale:g}")
                forwards["srdd"] += 1
                found[layer, at, trial] = _kl_nats(clean, noisy)
        step()
    return found, forwards


def _last_logits(model: nn.Module, inputs: dict[str, Any], what: str) -> Tensor:
    """The last token's logits of each prompt, on the host."""
    with torch.no_grad():
        logits = getattr(model(**inputs), "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        raise ModelError(f"{type(model).__name__}: expected a causal language model, one that predicts next tokens")
    with on_host():
        last = logits[:, -1].cpu()
        if not is_finite(last):
            raise NonFinite(f"{what} gives non-finite logits, by which srdd cannot rank layers; use method host")
    return last


def _kl_nats(clean: Tensor, noisy: Tensor) -> list[float]:
    with on_host():
        return [compute_kl_divergence(*rows) for rows in zip(clean, noisy, strict=True)]


# --- probes -----------------------------------------------------------------------------------------------------


def score_layers(responses: _Array) -> list[LayerScore]:
    """The score of every layer, from KL as layers x scales x trials x prompts."""
    means = responses.mean((2, 3))
    a = np.array([_monotonicity(row) for row in means])
    b = _smoothness(means[:, _MIDDLE])
    c = np.array([_variation(row) for row in responses[:, _MIDDLE].mean(1)])
    d = np.array([_slope(row) for row in means[:, _SLOPE]])
    score = np.maximum(0, -_z(a)) + 1.5 * np.maximum(0, _z(b)) + np.maximum(0, _z(c)) + 1.5 * np.maximum(0, -_z(d))
    rows = np.stack([score, a, b, c, d], axis=1).tolist()
    return [LayerScore(layer, *row) for layer, row in enumerate(rows)]


def _monotonicity(means: _Array) -> float:
    """A; 0 for an answer that is the same at all scales."""
    rho = spearman(SCALES, means)
    return 0.0 if np.isnan(rho) else rho**2


def _smoothness(means: _Array) -> _Array:
    """B; 0 for a layer that has no neighbour."""
    logs = np.log(means + 1e-9)
    if len(logs) == 1:
        return np.zeros(1)
    before, after = np.r_[logs[1], logs[:-1]], np.r_[logs[1:], logs[-2]]
    apart: _Array = np.abs(logs - (before + after) / 2)
    return apart


def _variation(prompts: _Array) -> float:
    """C; 0 for no answer at all."""
    return float(prompts.std() / prompts.mean()) if prompts.any() else 0.0


def _slope(means: _Array) -> float:
    """D, in nats per unit of scale."""
    off = np.array(SCALES)[_SLOPE]
    off -= off.mean()
    return float(off @ means / (off @ off))


def _z(values: _Array) -> _Array:
    """Distance from the mean in units of the spread; 0 where there is none but rounding."""
    spread = values.std()
    if spread <= 1e-12 * np.abs(values).max():
        return np.zeros_like(values)
    z: _Array = (values - values.mean()) / spread
    return z
