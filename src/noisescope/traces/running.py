"""trace(): runs a model and records what its operators give, in a file of a few megabytes.

>>> reference = trace(model, prompts, tokenizer=tokenizer)      # doctest: +SKIP
>>> reference.save("gpu.trace")                                 # doctest: +SKIP
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from ..diagnosis.accepting import refuse_training
from ..diagnosis.progress import Progress, silent
from ..errors import InputError, ModelError, NothingMatched, quoted
from ..sites import Layout
from ..sites.patterns import pattern
from ..specs import Phase
from .assembling import Made, assemble
from .floor import Floors, Sketches, measure_floors, relative_error, units_of
from .hidden import Hidden
from .identity import Witness, dtype_of, structure_of
from .options import refuse_no_blocks, refuse_no_gradients, refuse_options
from .passes import BATCH, FEW_ROWS, FEW_TOKENS, ROWS, TOKENS, OnOutput, Passes, batches_of, open_passes
from .recorded import Trace
from .recorder import Recorder, Rows, Wanted

__all__ = ["layout_of", "trace", "wanted_sites"]


def trace(
    model: nn.Module,
    prompts: object = None,
    *,
    tokenizer: object = None,
    run: Callable[[], object] | None = None,
    sites: str | None = None,
    full: bool = False,
    inputs: bool = False,
    inputs_from: Trace | None = None,
    outputs_only: bool = False,
    backward: bool = False,
    decode: int = 0,
    floor: bool = True,
    emulate: str | Iterable[str] = (),
    n_samples: int | None = None,
    max_length: int | None = None,
    batch_size: int = BATCH,
    checkpoint: str | None = None,
    blocks: str | None = None,
    seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
) -> Trace:
    """What the operators of a model give on this device, as a trace to be compared with one from another device.

    Args:
        model: in eval mode, on the device that is to be recorded.
        prompts: texts, token ids, a dict of the model's inputs, a data file; None for 8 rows of 128 tokens of text.
        tokenizer: needed for texts.
        run: runs the model itself, in place of prompts; it is called several times, and must do the same every time.
        sites: pattern of site names, a glob or `re:` expression, such as "*.mlp.*"; None for all operators.
        full: keep whole values too, to compare exactly.
        inputs: keep the hidden states between blocks, so that a suspect can be fed with them.
        inputs_from: a trace with these, whose tokens are taken too where no prompts are given. The model runs a second
            time with every layer given the reference's input, so that its own error can be told from what it inherits.
        outputs_only: record the logits alone, whole, for a device that gives nothing else.
        backward: record the gradients of the next-token loss too.
        decode: how many tokens at the end of each row are computed one by one from a cache.
        floor: measure the noise floor too, on the first 128 tokens; a reference needs one.
        emulate: devices and faults to play, such as "tf32" or "saturation:0.2@15.linear" (see `devices`).
        n_samples: rows of the data; None for 8, of outputs alone 2.
        max_length: tokens of a row; None for 128, of outputs alone 32.
        batch_size: rows that run together.
        checkpoint: digest of the weights' file before any cast; without one the weights in memory are compared.
        blocks: where the blocks are, if they are not found.
        seed: of data, signs, samples and noise; traces with different ones cannot be compared.
    """
    refuse_options(
        model,
        prompts,
        run,
        sites=sites,
        inputs=inputs,
        inputs_from=inputs_from,
        outputs_only=outputs_only,
        backward=backward,
        decode=decode,
        n_samples=n_samples,
        max_length=max_length,
        batch_size=batch_size,
    )
    refuse_training(model)
    if inputs_from is not None:
        _refuse_inputs(inputs_from, model, checkpoint, seed)
    layout = layout_of(model, blocks)
    if inputs:
        refuse_no_blocks(layout)
    passes = None
    if inputs_from is not None and run is None and prompts is None:
        prompts, decode = batches_of(inputs_from, model), inputs_from.head.decode
    if run is None:
        passes = open_passes(
            prompts,
            model,
            tokenizer,
            n_samples=n_samples or (FEW_ROWS if outputs_only else ROWS),
            max_length=max_length or (FEW_TOKENS if outputs_only else TOKENS),
            batch_size=batch_size,
            decode=decode,
            backward=backward,
            seed=seed,
        )
    job = _Job(
        model, layout, passes, run, wanted_sites(sites, backward=backward), seed, full or outputs_only, outputs_only
    )
    tell = progress or silent
    names = (emulate,) if isinstance(emulate, str) else tuple(emulate)
    device: AbstractContextManager[object] = nullcontext()
    if names:
        from ..devices import emulate as play

        few = passes.few().batches[0] if passes else None
        with torch.set_grad_enabled(backward):
            device = play(model, names, seed=seed, layout=layout, inputs=few, run=run)
    with device, torch.set_grad_enabled(backward):
        made = _make(job, inputs, inputs_from, tell, floor=floor)
    return assemble(
        made,
        model=model,
        layers=len(layout.blocks),
        tokenizer=tokenizer,
        data=passes.name if passes is not None else "own code",
        decode=decode,
        backward=backward,
        outputs_only=outputs_only,
        pattern=sites,
        emulated=names,
        checkpoint=checkpoint,
        seed=seed,
        name=name,
    )


def _make(job: "_Job", inputs: bool, inputs_from: Trace | None, tell: Progress, *, floor: bool) -> Made:
    """The runs, in their order: the free one, floors, the fed one."""
    witness, hidden = Witness(), Hidden()
    with witness.watching(job.model), hidden.kept(job.layout) if inputs else nullcontext():
        free = job.record(on_batch=tell("recording", job.batches))
    if job.own_run is not None and torch.is_grad_enabled():
        refuse_no_gradients(free)
    made = Made(free, witness, job.passes.ids if job.passes is not None else ())
    if floor and not job.outputs_only:
        made.units = units_of(dtype_of(job.model))
        step = tell("noise floor", len(made.units) * (2 if inputs else 1))
        made.floor_tokens, made.floors = job.floors(made.units, step, made)
        if inputs:
            _, made.own_floors = job.floors(made.units, step, made, fed=True)
    if inputs:
        made.hidden = hidden
    if inputs_from is not None:
        made.inputs_from = inputs_from
        reference = Hidden([read() for read in inputs_from.hidden.values()])
        with reference.fed(job.layout):
            made.fed = job.record(on_batch=tell("feeding", job.batches))
    return made


@dataclass(frozen=True, eq=False)
class _Job:
    """How to run and record the model, once."""

    model: nn.Module
    layout: Layout
    passes: Passes | None
    own_run: Callable[[], object] | None
    wanted: Wanted
    seed: int
    full: bool
    outputs_only: bool

    @property
    def batches(self) -> int:
        """Steps of progress."""
        return len(self.passes.batches) if self.passes is not None else 1

    def record(
        self,
        passes: Passes | None = None,
        around: AbstractContextManager[object] | None = None,
        *,
        full: bool | None = None,
        on_batch: Callable[[], None] = lambda: None,
    ) -> Rows:
        """One run, with the recorder innermost, so that it sees what the device and the noise make of the values."""
        recorder = Recorder(self.layout, self.wanted, seed=self.seed, full=self.full if full is None else full)
        passes = passes or self.passes
        watching: AbstractContextManager[object] = nullcontext() if self.outputs_only else recorder
        with around or nullcontext(), watching:
            if passes is None:
                recorder.stage = "run"
                assert self.own_run is not None
                self.own_run()
                on_batch()
            else:
                on_output: OnOutput = recorder.record_output if self.outputs_only else lambda _logits: None
                passes.run(self.model, on_stage=recorder.enter, on_output=on_output, on_batch=on_batch)
        rows = recorder.taken()
        if not rows:
            raise NothingMatched("sites: no operator of the model matches; `noisescope sites` lists them")
        return rows

    def floors(
        self, units: tuple[float, ...], on_run: Callable[[], None], made: Made, *, fed: bool = False
    ) -> tuple[int, Floors]:
        """Tokens that they were measured on, and what came out; not for a run that is another than that `made`."""
        few, hidden, witness = self.passes.few() if self.passes is not None else None, Hidden(), Witness()
        with witness.watching(self.model), hidden.kept(self.layout) if fed else nullcontext():
            clean = self._sketches(few)
        if self.own_run is not None:
            _refuse_another(made, witness, clean, units[0])

        def run(noise: AbstractContextManager[object]) -> Sketches:
            with hidden.fed(self.layout) if fed else nullcontext():
                return self._sketches(few, noise)

        found = measure_floors(run, clean, self.layout, units, seed=self.seed, on_run=on_run)
        return few.tokens if few is not None else 0, found

    def _sketches(self, few: Passes | None, noise: AbstractContextManager[object] | None = None) -> Sketches:
        return {key: row.tally for key, row in self.record(few, noise, full=False).items()}


def _refuse_another(made: Made, witness: Witness, again: Sketches, unit: float) -> None:
    """Raises for a run that did not do the same again; the bits may be others where a device adds in any order."""
    first = {key: row.tally for key, row in made.free.items()}
    same_inputs = (made.witness.digest, made.witness.inputs) == (witness.digest, witness.inputs)
    if same_inputs and list(first) == list(again):
        differ = [key for key in first if first[key].bits != again[key].bits]
        if all(relative_error(first[key], again[key]) < unit**0.5 for key in differ):
            return
    raise InputError(
        "run: did not do the same when it was called again, and must; seed what it draws, or pass floor=False"
    )


def _refuse_inputs(reference: Trace, model: nn.Module, checkpoint: str | None, seed: int) -> None:
    """Raises for a reference whose inputs are not those of this model."""
    name, head = reference.name or "the trace", reference.head
    if not reference.hidden:
        raise InputError(f"inputs_from: {name} holds no hidden states; record it with --inputs")
    if head.structure != structure_of(model):
        raise InputError(f"inputs_from: {name} is of another model, {quoted(head.model)}")
    if checkpoint is not None and head.checkpoint is not None and checkpoint != head.checkpoint:
        raise InputError(f"inputs_from: {name} is of other weights, those of another checkpoint")
    if seed != head.seed:
        raise InputError(f"inputs_from: {name} was made with seed {head.seed}, and this is {seed}; use that one")


def wanted_sites(sites: str | None, *, backward: bool) -> Wanted:
    """Which values to record, by the pattern of their sites' names without call and direction."""
    try:
        meant = pattern(sites) if sites is not None else None
    except InputError as error:
        raise InputError(str(error).replace("modules:", "sites:", 1)) from None

    def wanted(module: str, operator: str, phase: Phase) -> bool:
        if phase == "backward" and not backward:
            return False
        return meant is None or any(meant(name) for name in (module, f"{module}.{operator}"))

    return wanted


def layout_of(model: nn.Module, blocks: str | None) -> Layout:
    """Blocks where there are some; a model without any is recorded all the same."""
    try:
        return Layout.of(model, blocks=blocks)
    except ModelError:
        if blocks is not None:
            raise
        return Layout.without_blocks(model)
