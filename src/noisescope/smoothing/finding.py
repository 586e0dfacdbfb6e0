"""The groups of a model, found by watching it run: no names of architectures.

A norm feeds the linears that are given the very tensor it made. Of the other linears, `proportions` tries which earlier
linear of the block they are proportional to. Each group found is then proved: folded with powers of two, which round
nothing, the block must give the same output. So what a norm's value is used for elsewhere, an expert or a residual that
takes it too, is seen in the result; what cannot be proved is left alone, with the reason. Proofs are in float32,
whatever the model's dtype: in 16 bit, a leak as small as a rounding would pass for one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..keys import Key
from ..models.boundary import one_line
from ..sites import Layout, is_linear, matrix
from .groups import Group, used_once, wide
from .proportions import proportional_channels
from .replaying import BlockCall, Seen

__all__ = ["Skipped", "find_groups"]

PROOF = 16
"""how far a block may move under a fold by powers of two, in roundings of float32; most do not move at all"""
OFFSETS = (0.0, 1.0)
"""what norms add to their weight"""


@dataclass(frozen=True)
class Skipped:
    """Linears that are left as they are, and why."""

    layer: int
    names: tuple[str, ...]
    reason: str


def find_groups(
    layout: Layout, sequences: Iterable[BlockCall], tokens: Iterable[BlockCall]
) -> tuple[list[Group], list[Skipped]]:
    """All groups, and what is in none.

    Args:
        layout: of the model.
        sequences: what each block is given on some text.
        tokens: the same on single tokens.
    """
    groups: list[Group] = []
    skipped: list[Skipped] = []
    untied = used_once(layout.root)
    for layer, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
        for found in _Block(layout, layer, sequence, token, untied).found():
            (groups if isinstance(found, Group) else skipped).append(found)  # type: ignore[arg-type]
    return groups, skipped


class _Block:
    """One block: its linears by what they are given, and the groups among them."""

    def __init__(
        self, layout: Layout, layer: int, sequence: BlockCall, token: BlockCall, untied: set[nn.Parameter]
    ) -> None:
        self.layout, self.layer, self.token, self.untied = layout, layer, token, untied
        self.proof = sequence.in_float32()
        self.paths = {module: path for path, module in sequence.block.named_modules()}
        norms = [module for module in self.paths if layout.operator.get(module) in ("rms_norm", "layer_norm")]
        linears = [module for module in self.paths if is_linear(module)]
        calls = sequence.seen([*norms, *linears])
        often = {module: sum(call.module is module for call in calls) for module in (*norms, *linears)}
        once = [call for call in calls if often[call.module] == 1]
        self.norms = [call for call in once if call.module in norms]
        self.linears = [call for call in once if call.module in linears]
        self.silent = [module for module in linears if often[module] != 1]
        self.stacked = [
            module
            for module in self.paths
            if any(own.ndim == 3 for own in module._parameters.values() if own is not None)
        ]

    def found(self) -> Iterator[Group | Skipped]:
        """Each set of linears with one input: their group, or why there is none."""
        for fed in _by_input(self.linears):
            norm = next((call for call in self.norms if _is_same(call.value, fed[0].given)), None)
            yield self._after_norm(norm, fed) if norm is not None else self._after_linear(fed)
        if self.silent:
            yield self._skipped(self.silent, "run not at all or more than once in a forward pass, as experts do")
        if self.stacked:
            yield self._skipped(self.stacked, "the weights of experts are stacked in one tensor")

    def _after_norm(self, norm: Seen, fed: list[Seen]) -> Group | Skipped:
        modules, name = [call.module for call in fed], self.paths[norm.module]
        weight = norm.module._parameters.get("weight")
        width = fed[0].given.shape[-1]
        if weight is None or tuple(weight.shape) != (width,):
            return self._skipped(modules, f"{name} has no weight for each channel to fold into")
        for offset in OFFSETS:
            group = self._group(norm.module, modules, torch.arange(width), width, offset)
            if _scales_down(group, norm, self.proof):
                return self._proved(group)
        return self._skipped(modules, f"{name} is not its weight times a normalised input")

    def _after_linear(self, fed: list[Seen]) -> Group | Skipped:
        modules = [call.module for call in fed]
        earlier = self.linears[: min(self.linears.index(call) for call in fed)]
        for before in reversed(earlier):
            width = matrix(before.module).shape[0]
            if before.value.shape[-1] != width:
                continue
            channels = proportional_channels(self.token, before.module, modules[0], width)
            if channels is not None:
                return self._proved(self._group(before.module, modules, channels, width, None))
        return self._skipped(modules, "not proportional to the channels of a norm or linear before it")

    def _proved(self, group: Group) -> Group | Skipped:
        if any(parameter not in self.untied for parameter in group.parameters):
            return self._skipped(group.consumers, f"{group.names[0]} or they share a weight with another module")
        try:
            moved = moved_by(group, self.proof)
        except RuntimeError as error:
            return self._skipped(
                group.consumers, f"the block does not run in float32, for the proof: {one_line(error)}"
            )
        if moved <= PROOF * torch.finfo(self.proof.given.dtype).eps:
            return group
        return self._skipped(
            group.consumers,
            f"the value of {group.names[0]} goes elsewhere too: scaled, it moves the block's output by {moved:.1g}",
        )

    def _group(
        self, producer: nn.Module, consumers: list[nn.Module], channels: Tensor, width: int, offset: float | None
    ) -> Group:
        names = tuple(self.paths[module] for module in (producer, *consumers))
        return Group(self.layer, producer, tuple(consumers), names, channels, width, offset)

    def _skipped(self, modules: Iterable[nn.Module], reason: str) -> Skipped:
        return Skipped(self.layer, tuple(self.paths[module] for module in modules), reason)


def moved_by(group: Group, call: BlockCall) -> float:
    """How far a fold by powers of two moves the block's output, as a share of what the block adds to its input."""
    folded = group.folded(_powers_of_two(group), call.held)
    before, after = call.output().double(), call.output(folded).double()
    added = float((before - call.given.double()).norm())
    rounding = torch.finfo(call.given.dtype).eps * float(before.norm())  # of the sum with the input
    return max(float((after - before).norm()) - rounding, 0.0) / added if added else torch.inf


def _powers_of_two(group: Group) -> Tensor:
    """Two octaves up or down, one draw for each channel."""
    key = Key(0, f"{group.layer} {group.name}")
    return torch.exp2(torch.randint(-2, 3, (group.width,), generator=key.generator()).float())


def _scales_down(group: Group, norm: Seen, proof: BlockCall) -> bool:
    """Whether folded parameters make the norm's value smaller by just the scales."""
    scales = _powers_of_two(group)
    call = BlockCall(norm.module, (wide(norm.given),), {}, proof.held)
    found = call.output(group.folded(scales, call.held))
    expected = call.output().double() / scales.to(found.device)
    return float((found - expected).norm()) <= PROOF * torch.finfo(found.dtype).eps * float(expected.norm())


def _by_input(calls: list[Seen]) -> list[list[Seen]]:
    """The calls that were given the same tensor, together."""
    found: list[list[Seen]] = []
    for call in calls:
        same = next((others for others in found if _is_same(others[0].given, call.given)), None)
        if same is None:
            found.append([call])
        else:
            same.append(call)
    return found


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Whether both are the whole of one piece of memory; all that were seen are alive, so that none was used twice."""
    return a.data_ptr() == b.data_ptr() and a.numel() == b.numel() and a.shape[-1] == b.shape[-1]
