"""Which text is for the map, for its checks, and for the verdict: no row is used for two of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from ...diagnosis.accepting import data_for
from ...errors import InputError
from ...keys import Key
from ...measure.batches import Batch, EvaluationSet

__all__ = ["Texts", "part"]

LEAST = 8
"""rows of a part: fewer have no interval worth the name"""
CHECKED = 0.25
"""share of the map's rows that cells of it are run on"""


@dataclass(frozen=True, eq=False)
class Texts:
    """Rows of one source of data, in parts."""

    mapped: EvaluationSet
    """what the map is made on; its checks run on some of it, and so do the steps of a refinement"""
    held_out: EvaluationSet
    """what the plan is verified on"""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        source: object,
        tokenizer: Any,
        *,
        n_samples: int,
        n_verified: int,
        batch_size: int,
        max_length: int | None,
        seed: int,
    ) -> "Texts":
        """As many rows as asked for; where there are fewer, the parts shrink alike."""
        data = data_for(
            model,
            source,
            tokenizer,
            n_samples=n_samples + n_verified,
            batch_size=batch_size,
            max_length=max_length,
            seed=seed,
        )
        rows = data.rows
        held = max(LEAST, round(rows * n_verified / (n_samples + n_verified)))
        if rows < 2 * LEAST:
            raise InputError(f"data: {data.name} has {rows} rows, expected {2 * LEAST} or more, to plan and verify on")
        order = np.random.default_rng(Key(seed, "held out").digest).permutation(rows)
        apart = np.zeros(rows, dtype=bool)
        apart[order[:held]] = True
        return cls(part(data, ~apart, batch_size), part(data, apart, batch_size))

    @property
    def checked(self) -> EvaluationSet:
        """Some of what the map is made on, to run cells of it on."""
        return self._some(0, max(LEAST, round(CHECKED * self.mapped.rows)))

    @property
    def sloped(self) -> EvaluationSet:
        """Half of what the map is made on, for the slopes of a plan."""
        return self._some(0, self.mapped.rows // 2)

    @property
    def stepped(self) -> EvaluationSet:
        """The other half, to run the steps on that slopes suggest."""
        return self._some(self.mapped.rows // 2, self.mapped.rows)

    def _some(self, first: int, end: int) -> EvaluationSet:
        row = np.arange(self.mapped.rows)
        return part(self.mapped, (first <= row) & (row < end), max(batch.rows for batch in self.mapped))


def part(data: EvaluationSet, taken: "np.ndarray[Any, np.dtype[np.bool_]]", batch_size: int) -> EvaluationSet:
    """The rows that are taken, batch by batch; each is a sample of its own, of whose tokens all are predicted."""
    batches, first, sample = [], 0, 0
    for batch in data:
        rows = np.flatnonzero(taken[first : first + batch.rows])
        first += batch.rows
        for some in np.split(rows, range(batch_size, len(rows), batch_size)) if len(rows) else ():
            ids, mask, predicted = (part[some] for part in (batch.input_ids, batch.attention_mask, batch.predicted))
            batches.append(Batch(ids, mask, predicted, tuple(range(sample, sample + len(some)))))
            sample += len(some)
    return EvaluationSet(data.name, tuple(batches))
