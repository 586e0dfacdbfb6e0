"""The stages of a diagnosis, each computed once, when it is first asked for.

    coverage -> clean run -> map -> operators, windows, groups -> checks -> critical thresholds -> channels

Every figure comes from a point that is run, or from the map; this file decides which points.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isinf
from typing import Any

import torch
from torch import nn

from ..capturing import Capture, capture
from ..errors import InputError, NothingMatched
from ..injection import Coverage, is_unchanged_by_watching, survey
from ..keys import fingerprint_model
from ..measure.agreement import Agreement
from ..measure.batches import EvaluationSet
from ..measure.hessian import HessianTrace, hessian_trace
from ..measure.intervals import Estimate
from ..noise import Noise, make_noise
from ..operators import expand
from ..points import Bench, Clean, Point, Result
from ..sites import Layout, Selector
from ..specs import DEFAULT_WINDOW, DiagnosisSpec, Layer, Selection
from ..store import Journal
from .by_layer import Window, amplification, group_windows, longest_run, sliding_windows
from .by_operator import operator_points, together_points
from .channel_report import ChannelReport
from .channels import detect
from .checking import CheckedMap, cell_point, choose_checks, correct
from .mapping import MOMENTS, SensitivityMap, map_sensitivity
from .progress import Progress, silent
from .proxies import compare_proxies, outliers_by_layer
from .rows import Row
from .runs import Runs
from .sensing import Cell
from .thresholds import LARGEST, Link, Threshold, search

__all__ = ["Diagnosis"]

FEWEST_CHECKS, MOST_CHECKS = 8, 24
"""cells of the map that are injected for real: one a layer, within these"""
VERIFIED = 3
"""critical thresholds that are searched for by injection; the rest are predicted"""


class Diagnosis:
    """A diagnosis under way. What it has run, and what that cost, is in `runs`."""

    def __init__(
        self,
        model: nn.Module,
        data: EvaluationSet,
        spec: DiagnosisSpec,
        *,
        calibration: EvaluationSet | None = None,
        tokenizer: Any = None,
        max_new_tokens: int = 512,
        blocks: str | None = None,
        journal: Journal | None = None,
        progress: Progress = silent,
    ) -> None:
        self.model, self.data, self.spec = model, data, spec
        self.calibration = calibration or data
        self.layout = Layout.of(model, blocks=blocks)
        self.bench = Bench(model, data, layout=self.layout, tokenizer=tokenizer, max_new_tokens=max_new_tokens)
        self.noise: Noise = make_noise(spec.error_type, spec.noise_scale)
        self.noise_of_layers: Noise = make_noise(spec.error_type, spec.scale_of_layers)
        self.selection = Selection(spec.layers, expand(spec.operators))
        self.failures: dict[str, str] = {}
        """what failed and is no row of the report, and why: checks of the map, searches for a threshold"""
        self.runs = Runs(self.bench, journal, progress)
        self._blocks = blocks
        self._meant = Selector(self.selection, self.layout)

    # --- what there is ------------------------------------------------------------------------------------------

    @cached_property
    def coverage(self) -> Coverage:
        """Every site of the model."""
        return survey(self.model, blocks=self._blocks)

    @cached_property
    def weights(self) -> str:
        """The fingerprint of the model's weights."""
        return fingerprint_model(self.model)

    @cached_property
    def unchanged(self) -> bool:
        """Whether looking at the model leaves its output as it is, bit for bit."""
        return is_unchanged_by_watching(self.model, blocks=self._blocks)

    def check(self) -> None:
        """Raises if this cannot be asked of this model, before anything is run over the data."""
        if self.spec.level == "channel":
            return
        if self.layers and self.spec.includes("layer"):
            _ = self.window_size
        elif self.spec.level == "layer":
            raise NothingMatched(f"{self.selection.describe()}: no block is meant, so there are no layers to look at")

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The operators of each layer that are asked for."""
        found = dict.fromkeys(
            (site.layer, site.operator)
            for site in self.coverage.sites
            if site.layer is not None and self._meant(site.layer, site.operator, site.module)
        )
        if not found:
            raise NothingMatched(f"{self.selection.describe()}: no such site; `noisescope sites` lists what there is")
        return tuple((layer, operator) for layer, operator in found if layer is not None)

    @property
    def conclusive(self) -> bool:
        """Whether accuracy says something: the clean model must be better than chance."""
        return self.bench.clean.conclusive

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """The blocks that are asked for."""
        return tuple(sorted({layer for layer, _ in self.cells if isinstance(layer, int)}))

    # --- the map ------------------------------------------------------------------------------------------------

    @cached_property
    def map(self) -> SensitivityMap | None:
        """The map from gradients; None for noise that is not random and dense."""
        if self.noise.name not in MOMENTS:
            return None
        _ = self._clean_stage  # which says so if the model gives no finite output
        found = self.runs.remembered("map", SensitivityMap, self._make_map)
        self.runs.costs["map"] = found.cost
        return found

    def _make_map(self) -> SensitivityMap:
        return map_sensitivity(
            self.model,
            self.data,
            selection=self.selection,
            seed=self.spec.seed,
            layout=self.layout,
            recordings=self.bench.recordings,
            progress=self.runs.progress("map", len(self.data.batches)),
        )

    @cached_property
    def checked(self) -> CheckedMap | None:
        """The map after its most fragile cells and a random share were injected for real."""
        if self.map is None:
            return None
        predicted = self.map.predict(self.noise)
        some = min(MOST_CHECKS, max(FEWEST_CHECKS, len(self.layers)))
        count = len(predicted) if self.spec.sampled == "all" else some
        chosen = choose_checks(predicted, count, seed=self.spec.seed)
        points = {cell: cell_point(cell, self.noise, **self._draws) for cell in chosen}
        results = self._run("checks", points)
        for (layer, operator), result in results.items():
            if result.comparison is None:
                self.failures[f"check of {layer} {operator}"] = result.finding.failure
        return correct(predicted, results, prefer_measured=self.spec.sampled == "all")

    # --- operators and layers -----------------------------------------------------------------------------------

    @cached_property
    def operators(self) -> list[Row]:
        """Level 1: one row per operator over all blocks, and one for each of embed, final_norm, head."""
        return self._rows("operators", operator_points(self.cells, self.noise, **self._draws))

    @cached_property
    def together(self) -> list[Row]:
        """All operators at once, and the core ones."""
        return self._rows("together", together_points(self.cells, self.noise, **self._draws))

    @cached_property
    def windows(self) -> dict[Window, Row]:
        """Level 2: sliding windows."""
        found = sliding_windows(self.layers, self.window_size, self.spec.step_size) if self.layers else []
        return self._over_layers("windows", {window.name: window for window in found})

    @property
    def window_size(self) -> int:
        """Layers of a window: as many as were asked for, or what there is if nothing was said."""
        size, most = self.spec.window_size, longest_run(self.layers)
        if size > most and size != DEFAULT_WINDOW:
            raise InputError(f"window_size: got {size}, expected at most {most}, the layers in a row to choose from")
        return min(size, most)

    @cached_property
    def groups(self) -> dict[str, tuple[Window, Row]]:
        """Early, middle and late layers."""
        groups = group_windows(self.layers)
        rows = self._over_layers("groups", groups)
        return {name: (window, rows[window]) for name, window in groups.items()}

    @cached_property
    def single_layers(self) -> dict[int, Row]:
        """Each layer alone, injected; empty unless all is to be sampled."""
        if self.spec.sampled != "all":
            return {}
        found = self._over_layers("layers", {f"L{layer}": Window(layer, layer) for layer in self.layers})
        return {window.first: row for window, row in found.items()}

    def layer_kl(self, layer: Layer) -> Estimate | None:
        """A layer's KL: injected if that was done, else the sum of its cells of the map."""
        row = self.single_layers.get(layer) if isinstance(layer, int) else None
        if row is not None and (row.broken or not row.failed):
            return row.kl
        return self._map_of_layers.layer(layer) if self._map_of_layers is not None else None

    @cached_property
    def _map_of_layers(self) -> CheckedMap | None:
        """The map at the scale of the layers; its checks hold at the scale that they were made at."""
        if self.map is None or self.noise_of_layers.scale == self.noise.scale:
            return self.checked
        return correct(self.map.predict(self.noise_of_layers), {})

    def amplification(self, window: Window) -> Estimate | None:
        """How much more a window does than the sum of its layers."""
        parts = [self.layer_kl(layer) for layer in window.layers]
        known = [part for part in parts if part is not None]
        return amplification(self.windows[window].kl, known) if len(known) == len(parts) else None

    # --- critical thresholds ------------------------------------------------------------------------------------

    @cached_property
    def thresholds(self) -> dict[str, Threshold]:
        """The smallest scale that costs too much accuracy, for each layer and operator of the levels asked for."""
        rows = self._measured_rows
        places = self._threshold_places()
        if not self.conclusive or not places:
            return {}
        link = Link.fit(rows) if self.noise.name in MOMENTS else None
        found = {name: Threshold(name, self._foretell(link, point, kl)) for name, (point, kl) in places.items()}
        worst = sorted(found, key=lambda name: -places[name][1].value / places[name][0].noise_scale ** 2)
        chosen = worst if self.spec.sampled == "all" else worst[:VERIFIED]
        known = {row.name: row.degradation.value for row in rows if row.broken or not row.failed}
        tick = self.runs.progress("thresholds", len(chosen))
        for name in chosen:
            found[name] = self._verify(found[name], places[name][0], known.get(name))
            tick()
        return found

    def _foretell(self, link: Link | None, point: Point, kl: Estimate) -> Estimate | None:
        """The threshold of a place, where something is known of how accuracy goes with its scale."""
        if link is None or point.noise_scale > LARGEST or isinf(kl.value):
            return None
        return link.threshold(kl, point.noise_scale, self.spec.target_degradation)

    def _threshold_places(self) -> dict[str, tuple[Point, Estimate]]:
        """What has a threshold: the point to inject, and its KL at the scale of that point."""
        found: dict[str, tuple[Point, Estimate]] = {}
        if self.spec.includes("operator"):
            found |= {row.name: (row.result.point, row.kl) for row in self.operators if row.broken or not row.failed}
        if self.spec.includes("layer"):
            for layer in self.layers:
                if (kl := self.layer_kl(layer)) is not None:
                    window = Window(layer, layer)
                    found[window.name] = (self._window_point(window), kl)
        return found

    def _verify(self, threshold: Threshold, point: Point, known: float | None) -> Threshold:
        """Searches for a threshold, for as long as the budget allows; what it took is lost if a point fails."""

        def degradation(asked: Point) -> float:
            (result,) = self.runs.results("thresholds", [asked])
            if result.comparison is None and not result.finding.final:
                raise _Unmeasured(result.finding.failure)
            return 1.0 if result.comparison is None else result.comparison.degradation.value

        try:
            between, evaluations = search(
                point,
                degradation,
                target=self.spec.target_degradation,
                start=threshold.predicted.value if threshold.predicted is not None else point.noise_scale,
                known=None if known is None else {point.noise_scale: known},
                go_on=lambda: self.spec.sampled == "all" or self.runs.cost + self.spec.trials <= self.budget,
            )
        except _Unmeasured as failure:
            self.failures[f"critical threshold of {threshold.name}"] = str(failure)
            return threshold
        return Threshold(threshold.name, threshold.predicted, between, evaluations)

    @property
    def budget(self) -> float:
        """Forward-pass equivalents that a diagnosis may cost, unless everything is to be sampled."""
        return (2 * self.bench.layers + 20) * self.spec.trials

    @property
    def _measured_rows(self) -> list[Row]:
        """Everything injected at the levels asked for."""
        found: list[Row] = []
        if self.spec.includes("operator"):
            found += [*self.operators, *self.together]
        if self.spec.includes("layer"):
            found += [*self.windows.values(), *self.single_layers.values()]
        return found

    # --- channels and curvature ---------------------------------------------------------------------------------

    @cached_property
    def channels(self) -> ChannelReport:
        """Level 3: outlier channels of the default projections."""
        if self._looks_at_channels_in_clean_run and (found := self._clean_stage.channels) is not None:
            return found
        self.runs.costs["channels"] = self.calibration.tokens / self.data.tokens
        return self.runs.remembered("channels", ChannelReport, lambda: detect(self.look_at_channels()))

    def look_at_channels(self) -> Capture:
        """A clean run over the calibration data with an eye on the channels."""
        tick = self.runs.progress("channels", len(self.calibration.batches))
        device = next(self.model.parameters()).device
        with self._capture() as captured:
            for batch in self.calibration:
                with torch.no_grad():
                    self.model(**batch.inputs(device))
                tick()
        return captured

    def _capture(self) -> Capture:
        layers = self.selection.layers
        return capture(self.model, layers=layers, persistence=self.spec.outlier_threshold, blocks=self._blocks)

    @cached_property
    def hessian(self) -> HessianTrace | None:
        """The Hessian's trace by layer, if it was asked for."""
        if not self.spec.curvature:
            return None
        found = self.runs.remembered(
            "hessian", HessianTrace, lambda: hessian_trace(self.model, self.data, seed=self.spec.seed)
        )
        self.runs.costs["curvature"] = found.cost
        return found

    @cached_property
    def agreement(self) -> Agreement | None:
        """Whether cheaper measures rank the layers as noise does."""
        known = {layer: self.layer_kl(layer) for layer in self.layers}
        sensitivity: dict[Layer, float] = {layer: found.value for layer, found in known.items() if found is not None}
        if self.map is None:
            return None
        outliers = None
        if self.spec.includes("channel"):
            outliers = outliers_by_layer(self.channels, self.layout, self.layers)
        return compare_proxies(sensitivity, self.map, outliers=outliers, hessian=self.hessian, seed=self.spec.seed)

    # --- running points -----------------------------------------------------------------------------------------

    @property
    def _draws(self) -> dict[str, int]:
        return {"seed": self.spec.seed, "trials": self.spec.trials}

    def _over_layers(self, stage: str, windows: Mapping[str, Window]) -> dict[Window, Row]:
        points = {name: self._window_point(window) for name, window in windows.items()}
        rows = self._rows(stage, points)
        return dict(zip(windows.values(), rows, strict=True))

    def _window_point(self, window: Window) -> Point:
        """Noise on the layers of a window that are asked for."""
        layers = tuple(layer for layer in window.layers if layer in self.layers)
        return Point(Selection(layers, self.selection.operators), self.noise_of_layers, **self._draws)

    def _rows(self, stage: str, points: Mapping[str, Point]) -> list[Row]:
        return [Row(name, result) for name, result in self._run(stage, points).items()]

    def _run(self, stage: str, points: Mapping[Any, Point]) -> dict[Any, Result]:
        _ = self._clean_stage
        return self.runs.stage(stage, points)

    # --- the clean run ------------------------------------------------------------------------------------------

    @property
    def _looks_at_channels_in_clean_run(self) -> bool:
        """True if channels are asked for on the data of the clean run."""
        return self.spec.level == "full" and self.calibration is self.data

    @cached_property
    def _clean_stage(self) -> "_CleanStage":
        """The clean run, in which channels are looked at too if they are asked for on the same data."""
        found = self.runs.remembered("clean", _CleanStage, self._run_clean)
        self.bench.know(found.clean)
        self.runs.costs["clean"] = found.clean.blocks / self.bench.blocks
        return found

    def _run_clean(self) -> "_CleanStage":
        self.bench.on_batch = self.runs.progress("clean", len(self.data.batches))
        if not self._looks_at_channels_in_clean_run:
            return _CleanStage(self.bench.keep(), None)
        with self._capture() as captured:
            _ = self.bench.clean
        return _CleanStage(self.bench.keep(), detect(captured))


class _Unmeasured(Exception):
    """A point that failed, of which another run may know more."""


@dataclass(frozen=True, eq=False)
class _CleanStage:
    """The clean run, and the channels if they were looked at in it."""

    clean: Clean
    channels: ChannelReport | None
