"""Continue a forward pass from a block's stored output: noise that starts at layer L needs no block before L again.

    recording = Recording(layout, Shelf(budget_bytes=2**30))
    with recording.record():
        clean = model(**inputs).logits                # the blocks' outputs are kept
    with recording.resume(20):
        logits = model(**inputs).logits               # blocks 0 to 19 are not computed, the bits are the same

The model's own forward runs, with its embedding, masks, positions, final norm and head, whatever its family: blocks
before L hand their input on, and block L - 1 gives what it gave before. What a block returns beside the hidden state
is kept too. A model in which a block leaves more behind than it returns (a cache, a shared state) cannot be resumed;
`points.Bench` compares one resumed trial with a whole one, bit for bit, before it relies on resuming.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from tempfile import gettempdir
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from .errors import InputError, ModelError
from .injection import Replacement, forwards_replaced
from .sites import Layout
from .store import Spill

__all__ = ["Recording", "Shelf"]


class Shelf:
    """Tensors kept for later: in memory up to a budget, the rest in a directory that goes away with the shelf."""

    def __init__(self, budget_bytes: int) -> None:
        if budget_bytes < 0:
            raise InputError(f"budget_bytes: got {budget_bytes}, expected a whole number of bytes")
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.spilled_bytes = 0
        self._spill: Spill | None = None

    def put(self, tensor: Tensor) -> "Kept":
        """Keeps a copy's worth: the tensor itself must not be changed afterwards."""
        tensor = tensor.detach()
        size = tensor.numel() * tensor.element_size()
        if self.used_bytes + size <= self.budget_bytes:
            self.used_bytes += size
            return Kept(tensor, None)
        if self._spill is None:
            self._spill = Spill(gettempdir())
        path = self._spill.write(save({"kept": tensor.contiguous().cpu()}))
        self.spilled_bytes += size
        return Kept(None, partial(_load, path, tensor.device))

    def close(self) -> None:
        """Removes what was written."""
        if self._spill is not None:
            self._spill.close()


class Kept:
    """One tensor on a shelf."""

    def __init__(self, tensor: Tensor | None, load: Callable[[], Tensor] | None) -> None:
        self._tensor, self._load = tensor, load
        self._version = tensor._version if tensor is not None else 0

    def get(self) -> Tensor:
        """The tensor, bit for bit as it was put."""
        if self._tensor is None:
            assert self._load is not None
            return self._load()
        if self._tensor._version != self._version:
            raise ModelError("a stored hidden state was changed in place by the model; it cannot be resumed from")
        return self._tensor


def _load(path: str, device: torch.device) -> Tensor:
    return load_file(path)["kept"].to(device)


class _Output:
    """What one block returned: the hidden state, which is the first tensor, on the shelf; the rest as it was."""

    def __init__(self, returned: Any, shelf: Shelf) -> None:
        leaves, self._shape = tree_flatten(returned)
        self._place = next((at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)), None)
        if self._place is None:
            raise ModelError(f"a block returned {type(returned).__name__} without a tensor in it; it cannot be resumed")
        self._hidden = shelf.put(leaves[self._place])
        self._rest: list[Any] = leaves
        self._rest[self._place] = None

    def hidden(self) -> Tensor:
        """The hidden state."""
        return self._hidden.get()

    def again(self, hidden: Tensor | None = None) -> Any:
        """The same structure, with the hidden state of then, or another."""
        leaves = list(self._rest)
        leaves[self._place] = self._hidden.get() if hidden is None else hidden  # type: ignore[index]
        shape: TreeSpec = self._shape
        return tree_unflatten(leaves, shape)


class _Enough(Exception):
    """Ends a forward pass whose rest is not needed."""


@dataclass
class Segment:
    """One block between its input and its output; None where there is none, or before it ran."""

    hidden: Tensor | None = None
    output: Tensor | None = None

    def run(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        """The block's forward; the pass ends with it."""
        returned = tree_leaves(forward(*args, **kwargs))
        self.output = next(leaf for leaf in returned if isinstance(leaf, Tensor))
        raise _Enough


class Recording:
    """What the blocks of a model gave in one forward pass."""

    def __init__(self, layout: Layout, shelf: Shelf) -> None:
        self._blocks = layout.blocks
        self._shelf = shelf
        self._outputs: list[_Output | None] = [None] * len(layout.blocks)

    def record(self) -> AbstractContextManager[None]:
        """Keeps what the blocks give in the forward pass that runs inside."""
        return forwards_replaced({block: partial(self._keep, at) for at, block in enumerate(self._blocks)})

    @contextmanager
    def resume(self, layer: int) -> Iterator[None]:
        """The forward pass inside computes from block `layer` on; the number of blocks means after the last."""
        if layer == 0:
            yield
            return
        for at in range(layer):
            self._require(at)
        skipped = {block: partial(self._skip, at, last=layer - 1) for at, block in enumerate(self._blocks[:layer])}
        with forwards_replaced(skipped):
            yield

    @contextmanager
    def only(self, layer: int) -> Iterator["Segment"]:
        """The forward pass inside computes block `layer` alone, from its stored input, and ends there.

        Both are left in the segment with the graph between them, so that a backward pass can be made block by block,
        in the memory of one. For block 0 what precedes the blocks is computed too, and the segment has no input; the
        number of blocks means what follows them, to the end.
        """
        segment = Segment()
        replaced: dict[nn.Module, Replacement] = {
            block: partial(self._skip, at, last=layer) for at, block in enumerate(self._blocks[: max(0, layer - 1)])
        }
        if layer:
            segment.hidden = self._require(layer - 1).hidden().detach().requires_grad_()
            replaced[self._blocks[layer - 1]] = partial(self._give, layer - 1, segment.hidden)
        if layer < len(self._blocks):
            replaced[self._blocks[layer]] = segment.run
        try:
            with forwards_replaced(replaced):
                yield segment
        except _Enough:
            pass

    def _give(self, at: int, hidden: Tensor, _forward: Any, *_args: Any, **_kwargs: Any) -> Any:
        return self._require(at).again(hidden)

    def _require(self, at: int) -> "_Output":
        output = self._outputs[at]
        if output is None:
            raise ModelError(f"cannot resume at layer {at + 1}: block {at} did not run when it was recorded")
        return output

    def _keep(self, at: int, forward: Any, *args: Any, **kwargs: Any) -> Any:
        returned = forward(*args, **kwargs)
        self._outputs[at] = _Output(returned, self._shelf)
        return returned

    def _skip(self, at: int, _forward: Any, *args: Any, last: int, **kwargs: Any) -> Any:
        output = self._require(at)
        if at == last:
            return output.again()
        hidden = next((given for given in (*args, *kwargs.values()) if isinstance(given, Tensor)), None)
        return output.again(hidden)
