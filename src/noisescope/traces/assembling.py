"""From what was recorded to a trace: rows in the order of their first call, and everything there is to say of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..keys import fingerprint_config, fingerprint_model, fingerprint_tokenizer
from .floor import FACTOR, Floors
from .heads import FORMAT, QUANTILES, FloorHead, SiteHead, TraceHead
from .hidden import Hidden
from .identity import Witness, environment_of, structure_of
from .recorded import Trace
from .recorder import Row, Rows
from .sampling import SLOTS, positions
from .sketch import BUCKETS
from .tally import SiteRecord

__all__ = ["Made", "assemble"]


@dataclass(eq=False)
class Made:
    """What the runs of a trace left behind."""

    free: Rows
    witness: Witness
    ids: tuple[dict[str, Tensor], ...] = ()
    fed: Rows | None = None
    hidden: Hidden | None = None
    inputs_from: Trace | None = None
    units: tuple[float, ...] = ()
    floor_tokens: int = 0
    floors: Floors = field(default_factory=dict)
    own_floors: Floors = field(default_factory=dict)


def assemble(
    made: Made,
    *,
    model: nn.Module,
    layers: int,
    tokenizer: Any,
    data: str,
    decode: int,
    backward: bool,
    outputs_only: bool,
    pattern: str | None,
    emulated: tuple[str, ...],
    checkpoint: str | None,
    seed: int,
    name: str | None,
) -> Trace:
    """The trace."""
    rows = [("free", row) for row in made.free.values()]
    rows += [("fed", row) for row in made.fed.values()] if made.fed is not None else []
    lists: dict[tuple[int, ...], int] = {}
    heads, sketches, samples = [], [], []
    for run, row in rows:
        record = row.tally.read()
        if not bool(record.sketch.isfinite().all()) or not record.norm < 1e140:
            raise ModelError(f"{row.name}: values of up to {max(-record.min, record.max):g} are too large for a trace")
        at = lists.setdefault(record.sizes, len(lists))
        heads.append(_head(row, record, run, at, made if run == "free" else None))
        sketches.append(record.sketch)
        samples.append(record.sample)
    head = TraceHead(
        format=FORMAT,
        model=name or type(model).__name__,
        layers=layers,
        structure=structure_of(model),
        checkpoint=checkpoint,
        weights=fingerprint_model(model),
        configuration=fingerprint_config(model),
        tokenizer=fingerprint_tokenizer(tokenizer),
        data=data,
        tokens=made.witness.digest,
        passes=tuple(made.witness.passes),
        inputs=tuple(made.witness.inputs),
        decode=decode,
        backward=backward,
        outputs_only=outputs_only,
        sites_pattern=pattern,
        inputs_from=made.inputs_from.digest if made.inputs_from is not None else None,
        environment=environment_of(model, emulated),
        seed=seed,
        buckets=BUCKETS,
        slots=SLOTS,
        quantile_levels=QUANTILES,
        floor=FloorHead(made.floor_tokens, made.units, FACTOR) if made.units else None,
        sites=tuple(heads),
    )
    return Trace(
        head,
        torch.stack(sketches),
        _stacked(samples),
        tuple(torch.from_numpy(positions(seed, sizes)) for sizes in lists),
        {number: _reader(row.full) for number, (_, row) in enumerate(rows) if row.full},
        {number: _reader(states) for number, states in enumerate(made.hidden.passes)} if made.hidden else {},
        made.ids,
    )


def _head(row: Row, record: SiteRecord, run: str, positions_at: int, made: Made | None) -> SiteHead:
    site, key = row.site, row.key
    floors, tolerances = made.floors.get(key, ((), ())) if made is not None else ((), ())
    levels = torch.tensor(QUANTILES, dtype=torch.float64)
    return SiteHead(
        name=row.name,
        layer=site.layer,
        operator=site.operator,
        module=site.module,
        call=site.call,
        phase=site.phase,
        part=row.part,
        stage=row.stage,
        run=run,
        dtype=str(row.dtype).removeprefix("torch."),
        shape=row.shape,
        sizes=record.sizes,
        count=record.count,
        non_finite=record.non_finite,
        mean=record.mean,
        std=record.std,
        min=record.min,
        max=record.max,
        norm=record.norm,
        bits=record.bits,
        width=record.width,
        top_channels=record.top_channels,
        quantiles=tuple(torch.quantile(record.sample.double(), levels).tolist()),
        positions=positions_at,
        floors=floors,
        tolerances=tolerances,
        own_tolerances=made.own_floors.get(key, ((), ()))[1] if made is not None else (),
    )


def _stacked(samples: Sequence[Tensor]) -> Tensor:
    wide = any(sample.dtype == torch.float64 for sample in samples)
    return torch.stack([sample.double() if wide else sample for sample in samples])


def _reader(values: Any) -> Any:
    return lambda: values
