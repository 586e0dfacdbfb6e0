"""`plan_precision`: a number format for each weight, the best within so many bits, verified by running it.

plan = noisescope.plan_precision(model, tokenizer=tokenizer, avg_bits=5)
print(plan)
plan.save("noisescope-precision")
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...diagnosis.accepting import accept
from ...diagnosis.progress import Progress, silent
from ...errors import InputError
from ...keys import fingerprint_model
from ...noise.formats import parse_format
from ...points import Bench
from ...quantising.checking import PER_FORMAT, CheckedFormats, check_formats, measure
from ...quantising.format_map import FormatMap
from ...quantising.weights import find_weights, matching
from ...sites import Layout
from ...specs import Layer
from ...specs import known as known_names
from ...specs.checks import number
from .choosing import Candidates, Chosen, require_bits
from .knowing import mapped
from .plan import PrecisionPlan, Verified, sections
from .refining import RUNS, Refined, refine
from .rule import by_threshold, require_sizes
from .texts import Texts

__all__ = ["plan_precision"]


@torch.inference_mode(False)
def plan_precision(
    model: nn.Module,
    data: object = None,
    *,
    avg_bits: float = 6.0,
    formats: Collection[str] = known_names.PLANNED,
    keep: Collection[str] = (),
    strategy: str = "programme",
    degradation: Mapping[Layer, float] | None = None,
    tokenizer: Any = None,
    n_samples: int = 384,
    n_verified: int = 96,
    refined: bool = True,
    batch_size: int = 16,
    max_length: int | None = None,
    seed: int = 0,
    blocks: str | None = None,
    name: str | None = None,
    map_file: str | Path | None = None,
    progress: Progress = silent,
) -> PrecisionPlan:
    """A format for each weight of the blocks: the least KL within so many bits on average, scales counted.

    The effect of every format at every weight comes from one pass of gradients (`quantising.mapping`), some of it is
    checked by running, an integer programme chooses, small steps that are run one by one make that better (`refining`),
    and the plan is run on text that was not used before: beside single formats within the same bits, beside the plan
    before its steps, and beside the threshold rule if `degradation` is given. Head and embedding keep their precision.
    The model is left bit-identical.

    Args:
        model: a causal language model in 16 or 32 bit, in eval mode.
        data: what to plan and verify on; None is a built-in English text. Anything that `open_data` takes.
        avg_bits: bits of a weight on average, at most.
        formats: to choose from; see `parse_format`.
        keep: patterns of module paths that stay in 16 bit, and count as such.
        strategy: `programme`, or `threshold` for the documented rule, which needs `degradation`.
        degradation: layer -> share of accuracy lost to noise there, as a report has it.
        tokenizer: needed where data is text.
        n_samples: rows for the map. Its relative error is sqrt(2 / rows).
        n_verified: rows to verify on.
        refined: whether the programme's choice is made better by steps; False takes it as it is.
        batch_size: rows that run together.
        max_length: tokens of a row.
        seed: of rows, labels and checks.
        blocks: where the blocks are, for a model whose structure is not recognised.
        name: what the plan calls the model.
        map_file: where the map is kept for the next plan, and looked for; one of another question is replaced.
        progress: told how far the run is.
    """
    accept(model)
    if strategy not in known_names.STRATEGIES:
        raise InputError(f'strategy: got "{strategy}", expected one of {" ".join(known_names.STRATEGIES)}')
    if strategy == "threshold" and degradation is None:
        raise InputError(
            "strategy: the threshold rule needs a report of `diagnose`, for what noise costs in each layer"
        )
    asked = _Asked.of(avg_bits, formats)
    if strategy == "threshold":
        require_sizes(asked.formats)
    layout = Layout.of(model, blocks=blocks)
    require_bits(asked.avg_bits, find_weights(layout), asked.formats, keep=keep)
    texts = Texts.of(
        model,
        data,
        tokenizer,
        n_samples=n_samples,
        n_verified=n_verified,
        batch_size=batch_size,
        max_length=max_length,
        seed=seed,
    )
    known = mapped(model, texts, asked.formats, seed=seed, layout=layout, file=map_file, progress=progress)
    run = _Run(model, layout, texts, asked, tuple(keep), seed, progress)
    checked = run.check(known)
    candidates = Candidates(checked, asked.formats, keep=run.keep)
    alone = candidates.best(asked.avg_bits)
    steps = run.refine(candidates, alone) if refined else None
    best = alone if steps is None else steps.chosen
    ruled = None
    with suppress(InputError) if strategy == "programme" else nullcontext():  # the rule needs three sizes of formats
        ruled = by_threshold(candidates, degradation, asked.avg_bits) if degradation is not None else None
    chosen = best if ruled is None or strategy == "programme" else ruled
    others = {"programme": best, "by the map alone": None if steps is None or best is alone else alone}
    rows = run.verify(candidates, chosen, {**others, "threshold rule": ruled})
    weights = fingerprint_model(model)
    return PrecisionPlan(
        sections(
            candidates,
            chosen,
            rows,
            run.texts,
            refined=steps,
            subject={"model": name or type(model).__name__, "fingerprint": weights},
            asked={
                "avg_bits": asked.avg_bits,
                "formats": list(asked.formats),
                "keep": list(keep),
                "strategy": strategy,
                "seed": seed,
            },
            cost=run.cost(known, steps),
        )
    )


@dataclass(frozen=True)
class _Asked:
    avg_bits: float
    formats: tuple[str, ...]

    @classmethod
    def of(cls, avg_bits: float, formats: Collection[str]) -> "_Asked":
        try:
            bits: float = number(above=0, most=32.0)(avg_bits)
        except InputError as error:
            raise InputError(f"avg_bits: {error}") from None
        if isinstance(formats, str):
            raise InputError(f'formats: got "{formats}", expected a list of names')
        names = tuple(dict.fromkeys(str(parse_format(text)) for text in formats))
        if not names:
            raise InputError("formats: got none, expected some such as mxfp4 int8")
        return cls(bits, names)


class _Run:
    """What is run of a plan."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        texts: Texts,
        asked: _Asked,
        keep: tuple[str, ...],
        seed: int,
        progress: Progress,
    ) -> None:
        self.texts, self.asked, self.keep, self.seed, self.progress = texts, asked, keep, seed, progress
        self._checking = Bench(model, texts.checked, layout=layout)
        self._sloped = Bench(model, texts.sloped, layout=layout)
        self._stepped = Bench(model, texts.stepped, layout=layout)
        self._verifying = Bench(model, texts.held_out, layout=layout)

    def check(self, known: FormatMap) -> CheckedFormats:
        """The map, with some of it run."""
        kept = matching(self.keep, [place.path for place in known.places], what="keep")
        tick = self.progress("checks", PER_FORMAT * len(self.asked.formats))
        return check_formats(known, self._checking, self.asked.formats, seed=self.seed, keep=kept, progress=tick)

    def refine(self, candidates: Candidates, chosen: Chosen) -> Refined:
        """The choice, made better in steps."""
        tick = self.progress("steps", RUNS)
        return refine(
            candidates,
            chosen,
            self.asked.avg_bits,
            sloped=self._sloped,
            stepped=self._stepped,
            seed=self.seed,
            progress=tick,
        )

    def verify(self, candidates: Candidates, chosen: Chosen, others: Mapping[str, Chosen | None]) -> list[Verified]:
        """The plan, single formats and the other strategies, on text that was not used before."""
        rows = {"plan": chosen} | {
            label: other for label, other in others.items() if other is not None and other is not chosen
        }
        single = {name: candidates.uniform(name) for name in self.asked.formats}
        rows |= {f"all {name}": one for name, one in single.items() if one.bits <= self.asked.avg_bits * (1 + 1e-9)}
        tick = self.progress("verifying", len(rows))
        return [self._verified(label, one, tick) for label, one in rows.items()]

    def _verified(self, label: str, chosen: Chosen, tick: Callable[[], None]) -> Verified:
        found = Verified(label, chosen.bits, chosen.kl, measure(self._verifying, chosen.formats, seed=self.seed))
        tick()
        return found

    def cost(self, known: FormatMap, refined: Refined | None) -> float:
        """Forward-pass equivalents, in passes over the rows of the map."""
        benches = (self._checking, self._sloped, self._stepped, self._verifying)
        tokens = sum(bench.cost * bench.data.tokens for bench in benches)
        if refined is not None:
            tokens += refined.cost * self._sloped.data.tokens
        return known.cost + tokens / self.texts.mapped.tokens
