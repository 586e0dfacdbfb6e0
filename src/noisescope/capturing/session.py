"""`capture`: channel statistics, inputs and outputs at chosen sites of a model, while the `with` block lasts.

    with capture(model, layers="9-11") as captured:
        model(**batch)
    print(captured)

    site                                              channels  tokens    max  median  top channel
    model.layers.9.self_attn.o_proj.linear.0.forward       576    1024   4.21    0.87          301
    ...

Nothing the model computes is changed, nothing is attached to it, and what is kept stays within `budget_bytes`.
"""

import weakref
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor, nn

from .. import store
from ..errors import InputError, NothingMatched
from ..injection import Watch
from ..operators import expand
from ..sites import Layout, Selector, Site
from ..specs import OUTSIDE, Layer, Phase, Selection, parse_layers, parse_names
from .budget import Budget, expected_sites, tensor_bytes, token_embedding, value_bytes
from .channels import ChannelStatistics, ChannelTally, tally_bytes
from .persistence import Persistence, SampleCounts
from .projections import default_projections
from .scratch import Scratch
from .sequences import Masks, grouped_modules, sequences_of
from .table import table

__all__ = ["Capture", "capture"]

DEFAULT_BUDGET = 2**30
"""bytes that a capture may keep: enough for the default sites of a model of 7 billion parameters"""

_PROJECTING = ("linear", "bmm")
"""operators of the default sites; experts may be computed in batches"""


class Capture:
    """A running or finished capture, which is the observer that looks at the values.

    `sites` are the sites seen, by name, in the order of their first value. `inputs` and `outputs` hold for each of
    them one tensor per call: detached copies in the dtype they were computed in.
    """

    def __init__(
        self,
        model: nn.Module,
        selection: Selection,
        *,
        statistics: bool = True,
        inputs: bool = False,
        outputs: bool = False,
        persistence: float | None = None,
        budget_bytes: int = DEFAULT_BUDGET,
        blocks: str | None = None,
    ) -> None:
        layout = Layout.of(model, blocks=blocks)
        self._model = model
        self.selection = selection
        self.sites: dict[str, Site] = {}
        self.inputs: dict[str, list[Tensor]] = {}
        self.outputs: dict[str, list[Tensor]] = {}
        self._keeps_statistics, self._keeps_inputs, self._keeps_outputs = statistics, inputs, outputs
        self._budget = Budget(budget_bytes)
        self._tallies: dict[str, ChannelTally] = {}
        self._samples = (
            SampleCounts(persistence, grouped_modules(layout), self._budget) if persistence is not None else None
        )
        self._scratch, self._masks = Scratch(), Masks()
        self._selector = Selector(selection, layout)
        unsaid = selection.operators is None and selection.modules is None
        self._defaults = _projections(layout, selection) if unsaid else None
        self._expected = tuple(expected_sites(layout, self._means))
        self._tokens_at = token_embedding(layout) if inputs or outputs else None
        self._foreseen = -1
        # The watch and its mode refer to each other. Unless it is open, a weak reference lets stored tensors go with
        # the capture, not when Python gets round to collecting cycles.
        self._watch = Watch(weakref.proxy(self), layout=layout)

    def __enter__(self) -> "Capture":
        self._budget.check(self._forecast(tokens=0), f"statistics of {len(self._expected)} sites")
        self._watch.__enter__()
        self._watch.observer = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scratch, self._masks = Scratch(), Masks()
        self._watch.observer = weakref.proxy(self)
        self._watch.__exit__(kind, error, trace)
        if kind is None:
            self._refuse_silence()

    @property
    def statistics(self) -> dict[str, ChannelStatistics]:
        """Site name -> what its channels did so far."""
        return {name: tally.read() for name, tally in self._tallies.items()}

    @property
    def persistence(self) -> dict[str, Persistence | None]:
        """Site name -> in how many samples its channels were outliers so far; None where rows are no samples.

        Empty if it was not asked for.
        """
        return self._samples.read() if self._samples is not None else {}

    @property
    def persistence_threshold(self) -> float | None:
        """The ratio above which a channel counted as an outlier of a sample, if that was asked for."""
        return self._samples.threshold if self._samples is not None else None

    @property
    def steps(self) -> int:
        """Forward passes of the model seen, those still running included."""
        return self._watch.scope.step + 1

    @property
    def used_bytes(self) -> int:
        """Memory that statistics and stored tensors take."""
        return self._budget.used_bytes

    # --- the observer -------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Writes the statistics to a safetensors file, `site name/what` a tensor; where it is."""
        from safetensors.torch import save

        tensors = {
            f"{site}/{field.name}": getattr(found, field.name).contiguous()
            for site, found in self.statistics.items()
            for field in fields(found)
            if isinstance(getattr(found, field.name), Tensor)
        }
        store.make_directory(Path(path).parent)
        store.atomic_write(Path(path), save(tensors))
        return Path(path)

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        """True where the selection points, and at the embedding, whose ids tell how many tokens are coming."""
        return phase == "forward" and (module == self._tokens_at or self._means(layer, operator, module))

    def before(self, sites: tuple[Site, ...], operands: tuple[Tensor, ...], *, step: int) -> None:
        """Stores the first operand, the one that is neither a parameter nor added."""
        if self._watch.scope.recomputing or not operands:
            return
        if sites[0].module == self._tokens_at and step > self._foreseen:
            self._foresee(operands[0].numel(), step)
        if self._keeps_inputs:
            for site in filter(self._is_meant, sites):
                self._store(self.inputs, site, operands[0], "input")

    def forward(self, sites: tuple[Site, ...], value: Tensor, *, step: int, owned: bool) -> Tensor:
        """The value itself, looked at."""
        if self._watch.scope.recomputing:  # it was seen the first time
            return value
        for site in filter(self._is_meant, sites):
            self.sites.setdefault(site.name, site)
            if self._keeps_outputs:
                self._store(self.outputs, site, value, "output")
            if self._keeps_statistics:
                self._tally(site, value)
        return value

    def backward(self, site: Site, grad: Tensor, *, step: int, part: int) -> Tensor:
        """The gradient itself; none is ever asked for."""
        return grad

    def _is_meant(self, site: Site) -> bool:
        return self._means(site.layer, site.operator, site.module)

    def _means(self, layer: Layer | None, operator: str, module: str) -> bool:
        if not self._selector(layer, operator, module):
            return False
        if self._defaults is None:
            return True
        if isinstance(layer, int):
            return operator in _PROJECTING and module in self._defaults
        return self.selection.layers is not None  # `head` and the like, if they were asked for by name

    # --- what is kept, within the budget ------------------------------------------------------------------------

    def _store(self, where: dict[str, list[Tensor]], site: Site, tensor: Tensor, what: str) -> None:
        self._budget.take(tensor_bytes(tensor), f"the {what} of {site.name} in forward pass {self.steps}")
        with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
            where.setdefault(site.name, []).append(tensor.detach().clone())

    def _tally(self, site: Site, value: Tensor) -> None:
        width = value.shape[-1] if value.ndim else 1
        with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
            tally = self._tallies.get(site.name)
            if tally is None:
                self._budget.take(tally_bytes(width), f"the statistics of {site.name}")
                tally = self._tallies[site.name] = ChannelTally(width, value.device)
            elif width > tally.width:
                self._budget.take(tally_bytes(width - tally.width), f"the statistics of {site.name}")
                tally.widen(width)
            value = value.detach()
            scope = self._watch.scope
            sequences = sequences_of(value, scope.frames, scope.step, self._masks)
            tally.fold(value if sequences is None else sequences.without_padding(value), self._scratch)
            if self._samples is not None:
                self._samples.fold(site, value, sequences)

    def _foresee(self, tokens: int, step: int) -> None:
        """Refuses a forward pass whose tensors will not fit, before its first block."""
        self._foreseen = step
        self._budget.check(self._forecast(tokens), f"a forward pass over {tokens} tokens")

    def _forecast(self, tokens: int) -> int:
        """Bytes that a forward pass over so many tokens is known to add; sites outside the blocks may see fewer."""
        elements = sum(
            expected.input_width * self._keeps_inputs + expected.output_width * self._keeps_outputs
            for expected in self._expected
            if isinstance(expected.site.layer, int)
        )
        statistics = sum(
            tally_bytes(expected.output_width)
            for expected in self._expected
            if self._keeps_statistics and expected.site.name not in self._tallies
        )
        if self._samples is not None:
            statistics += sum(self._samples.bytes_expected(found.site, found.output_width) for found in self._expected)
        return statistics + (tokens * elements * value_bytes(self._model) if tokens else 0)

    # --- never a silent nothing ---------------------------------------------------------------------------------

    def _refuse_silence(self) -> None:
        if self.selection.empty or self.steps == 0:
            return
        asked = self.selection.describe() if self._defaults is None else "default sites"
        seen = {site.operator for site in self.sites.values()}
        self._watch.refuse_hidden(asked, self.selection.operators, seen)
        if not self.sites:
            raise self._selector.nothing(asked, self.steps)
        for name in self.sites if self._keeps_inputs else ():
            if name not in self.inputs:
                raise NothingMatched(f"{asked}: the input of {name} is given by keyword and cannot be seen")

    # --- reading ------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        stored = sum(map(len, (*self.inputs.values(), *self.outputs.values())))
        return (
            f"<Capture: {len(self.sites)} sites, {self.steps} forward passes, {stored} stored tensors, "
            f"{self.used_bytes / 2**20:.1f} MiB>"
        )

    def __str__(self) -> str:
        return table(self.statistics) if self._tallies else repr(self)


def _projections(layout: Layout, selection: Selection) -> frozenset[str]:
    """The default sites, unless there are none where they are asked for."""
    found = default_projections(layout)
    if not found and not set(OUTSIDE).intersection(selection.layers or ()):
        raise NothingMatched(
            f"{type(layout.root).__name__}: no attention output, MLP down or gate projection recognised; name the "
            'modules to look at, such as modules="*.mlp.*"; `noisescope sites` lists them'
        )
    return found


def capture(
    model: nn.Module,
    *,
    layers: int | str | Iterable[int | str] | None = None,
    operators: str | Iterable[str] | None = None,
    modules: str | Iterable[str] | None = None,
    statistics: bool = True,
    inputs: bool = False,
    outputs: bool = False,
    persistence: float | None = None,
    budget_bytes: int = DEFAULT_BUDGET,
    blocks: str | None = None,
) -> Capture:
    """A context manager that looks at the values of `model` at the selected places, and changes none of them.

    With neither operators nor modules given it looks at the attention output, MLP down and gate projections. Use it
    to find outlier channels, or to keep the inputs of operators for a check elsewhere. To disturb values use `inject`.

    Selecting `softmax`, or the products inside attention, makes a model with fused attention compute it in steps, as
    it does for `inject`: outputs are then those of attention in steps, equal to the fused ones up to rounding.

    Args:
        model: any module with a stack of blocks. Nothing is attached to it.
        layers: indices, ranges ("9-11"), `embed`, `final_norm`, `head`, or a collection of these. None means all
            blocks by default, and everything where operators or modules are given.
        operators: names of the catalogue, or the group `norm`. An empty list means none.
        modules: patterns of module paths, globs or `re:` expressions; a module means all that is inside it.
        statistics: keep channel statistics of the operators' values; 1328 bytes a channel, however many tokens.
            Padding, as the model's attention mask says, is left out where values are laid out by token.
        inputs: store the first operand of each operator, which is `x` for a linear.
        outputs: store the value of each operator.
        persistence: also count in how many samples each channel is an outlier, with its largest abs above so many
            times the median over channels (10 is usual); 16 bytes a channel more. `persistence.py` has the definition.
        budget_bytes: what statistics and stored tensors may take together. More is refused: when the block is
            entered, when a forward pass starts, or where a site's size is not known before, just before it is kept.
        blocks: where the blocks are, for a model whose structure is not recognised.

    Returns:
        The capture; `statistics`, `inputs`, `outputs` and `sites` may be read inside and after the block.

    Example:
        >>> with capture(model, layers=3, inputs=True) as captured:  # doctest: +SKIP
        ...     model(**batch)
        >>> captured.statistics["model.layers.3.mlp.down_proj.linear.0.forward"].max_abs  # doctest: +SKIP
    """
    if not (statistics or inputs or outputs):
        raise InputError("capture: statistics, inputs and outputs are all off, expected at least one of them")
    if persistence is not None and not statistics:
        raise InputError("capture: persistence belongs to the statistics, which are off; leave statistics on")
    selection = Selection(
        layers=parse_layers(layers),
        operators=expand(operators),
        modules=parse_names(modules, what="modules"),
    )
    return Capture(
        model,
        selection,
        statistics=statistics,
        inputs=inputs,
        outputs=outputs,
        persistence=persistence,
        budget_bytes=budget_bytes,
        blocks=blocks,
    )
