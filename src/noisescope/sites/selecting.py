"""From what is asked (a selection) to a yes or no for each place of one model."""

from functools import lru_cache

from ..errors import NothingMatched
from ..specs import Layer, Selection
from .layout import Layout
from .patterns import pattern

__all__ = ["Selector"]


class Selector:
    """Says of each place of a model whether a selection means it.

    A pattern that names a module means everything inside it too: `*.self_attn` includes its projections.
    A layer that the model does not have, and a pattern that matches no module, are errors here and now.
    """

    def __init__(self, selection: Selection, layout: Layout | None = None) -> None:
        self.selection = selection
        self._tests = [pattern(text) for text in selection.modules or ()]
        self._layout = layout
        if layout is not None:
            self._check(layout)
        self._inside = lru_cache(maxsize=None)(self._match_path)

    def __call__(self, layer: Layer | None, operator: str, module: str) -> bool:
        """True if the value of this operator, computed by this module in this layer, is meant."""
        wanted = self.selection
        return (
            (wanted.operators is None or operator in wanted.operators)
            and (wanted.layers is None or layer in wanted.layers)
            and (wanted.modules is None or self._inside(module))
        )

    def nothing(self, asked: str, passes: int) -> NothingMatched:
        """The error for a selection that met no value in so many forward passes, with the likely reason."""
        wanted = set(self.selection.operators or ())
        norms = {kind for kind in self._layout.operator.values() if "norm" in kind} if self._layout else set()
        if norms and wanted and not wanted & norms and all("norm" in operator for operator in wanted):
            why = f'the norms of this model are {" ".join(sorted(norms))}; "norm" means either kind'
        else:
            why = "see `noisescope sites`"
        return NothingMatched(f"{asked}: nothing matched in {passes} forward passes; {why}")

    def _match_path(self, module: str) -> bool:
        names = module.split(".")
        paths = [".".join(names[:depth]) for depth in range(len(names), 0, -1)]
        return any(test(path) for test in self._tests for path in paths)

    def _check(self, layout: Layout) -> None:
        for layer in self.selection.layers or ():
            layout.require(layer)
        for text, test in zip(self.selection.modules or (), self._tests, strict=True):
            if not any(test(path) for path in layout.paths.values()):
                raise NothingMatched(f'modules: "{text}" matches no module; `noisescope sites` lists them')
