"""locate(): where a device is broken, without a good one to compare it with.

>>> verdict = locate(model, prompts, tokenizer=tokenizer)      # doctest: +SKIP
>>> verdict.healthy, verdict.sites[0].name                     # doctest: +SKIP
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..capturing.finite import is_finite, non_finite
from ..diagnosis.accepting import refuse_training
from ..diagnosis.progress import Progress, silent
from ..diagnosis.prompts import ROWS, open_prompts
from ..errors import InputError, unknown_name
from ..faults import Fault, FaultSimulator, Survey, parse_fault
from ..injection import Watch
from ..injection.survey import kept_inputs
from ..sites import Layout
from ..traces import Trace, load_trace
from .by_fingerprint import locate_by_fingerprint
from .deciding import decide
from .device import Device
from .precision import FLUSH, MODES
from .reference import compare_with
from .sections import shape_of
from .srdd import PROMPTS, rank_layers
from .tracing import Plan, Row, Tracer
from .verdict import Verdict
from .weights import compare_weights

__all__ = ["METHODS", "locate"]

METHODS = ("auto", "repeat", "identities", "host", "srdd", "fingerprint")
HOST, IDENTITIES = 2, 13
"""forward passes that a method may take, beside those of the runs"""


def locate(
    model: nn.Module,
    prompts: object = None,
    *,
    tokenizer: object = None,
    method: str = "auto",
    budget: float | None = None,
    runs: int = 2,
    simulate: str | Fault | Iterable[str | Fault] = (),
    precision_mode: str | None = None,
    checkpoint: str | Path | None = None,
    reference: Trace | str | Path | None = None,
    blocks: str | None = None,
    seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Whether the device that a model runs on computes as it should, and if not, at which operator.

    Args:
        model: on the device that is under suspicion.
        prompts: texts, token ids, a dict of the model's inputs, a data file; None for two rows of 32 tokens of text.
        tokenizer: needed for texts.
        method: `repeat` makes every call twice; `host` computes it again on the host's CPU; `identities` asks for
            algebra that holds on a healthy device; `auto` does all three as far as the budget goes; `srdd` ranks
            layers by their response to noise, in 15 passes a layer whatever the budget; `fingerprint` ranks them by
            how well they explain the difference to the logits of `reference`, in 20 passes a layer.
        budget: forward passes that it may take, at least as many as runs; `auto` leaves the identities out where there
            are fewer than 13 beside these, and the host where there are fewer than 2. None for what is needed.
        runs: how often each call is made; more find rarer intermittent faults, 1 - (1 - p)^runs of those with
            probability p.
        simulate: faults to put into the device, as `FaultSimulator` takes them or "kind:magnitude@layer.operator".
        precision_mode: what the device's products are known to do otherwise, such as `tf32` (see `precision`).
        checkpoint: directory or safetensors file that the weights came from, to see whether memory holds them still.
        reference: a trace of the same model on a good device, or its file: this device runs on its tokens too, and is
            compared with it. One with inputs tells the layers that add an error from those that inherit it.
        blocks: where the blocks are, if they are not found.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if precision_mode is not None and precision_mode not in (*MODES, FLUSH):
        raise unknown_name("precision mode", precision_mode, [*MODES, FLUSH])
    if not isinstance(runs, int) or runs < 1 or (method in ("auto", "repeat") and runs < 2):
        raise InputError(f"runs: got {runs}, expected a whole number of at least 2")
    if budget is not None and not (isinstance(budget, (int, float)) and budget >= runs):
        raise InputError(f"budget: got {budget}, expected at least as many forward passes as runs, {runs}")
    if method == "fingerprint" and reference is None:
        raise InputError("reference: the fingerprint method needs the trace of another device's logits")
    refuse_training(model)
    layout = Layout.of(model, blocks=blocks)
    inputs = open_prompts(prompts, model, tokenizer, seed=seed, rows=PROMPTS if method == "srdd" else ROWS)
    good = load_trace(reference) if isinstance(reference, (str, Path)) else reference
    faults = [parse_fault(one, seed=seed) if isinstance(one, str) else one for one in _several(simulate)]
    survey = Survey.of(model, layout, inputs) if faults else None
    simulators = [FaultSimulator(model, fault, layout=layout, survey=survey) for fault in faults]
    tell = progress or silent
    if method == "fingerprint" and good is not None:
        return locate_by_fingerprint(
            model, good, layout=layout, simulators=simulators, seed=seed, progress=tell, name=name
        )
    with ExitStack() as stack, torch.no_grad():
        for simulator in simulators:
            stack.enter_context(simulator)
        if method == "srdd":
            return rank_layers(
                model,
                inputs,
                layout=layout,
                simulators=simulators,
                seed=seed,
                progress=tell,
                name=name,
                precision_mode=precision_mode,
            )
        plan = _plan(method, budget, runs)
        tracer, finite = _trace(model, inputs, layout, plan, tell)
        compared = None
        if good is not None:
            compared = compare_with(good, model, checkpoint=checkpoint, blocks=blocks, progress=tell)
    changed = compare_weights(model, layout, checkpoint) if checkpoint is not None else None
    config = {
        "model": name or type(model).__name__,
        "method": method,
        "runs": plan.runs,
        "budget": budget,
        "precision_mode": precision_mode,
        "shape": shape_of(inputs),
        "reference": good.name or "a trace" if good is not None else None,
        "seed": seed,
    }
    verdict = decide(
        tracer,
        plan,
        config=config,
        weights=changed,
        model=model,
        layout=layout,
        simulators=simulators,
        reference=compared,
    )
    if verdict.outcome != "faulty" and not finite:
        raise non_finite("the model", model, inputs, layout=layout)
    return verdict


def _several(given: str | Fault | Iterable[str | Fault]) -> Sequence[str | Fault]:
    return [given] if isinstance(given, (str, Fault)) else list(given)


def _plan(method: str, budget: float | None, runs: int) -> Plan:
    if method == "identities":
        return Plan(max(runs, 2), host=False, identities=True)
    if method != "auto":
        return Plan(runs, host=method == "host", identities=False)
    left = IDENTITIES if budget is None else budget - runs
    return Plan(runs, host=left >= HOST, identities=left >= IDENTITIES)


def _trace(
    model: nn.Module, inputs: dict[str, Any], layout: Layout, plan: Plan, progress: Progress
) -> tuple[Tracer, bool]:
    """Runs the pass; whether what the model gave in the end is finite."""
    step = progress("layers", len(layout.blocks) + 1)
    reached: set[Any] = set()

    def on_call(row: Row) -> None:
        if row.site.layer not in reached and isinstance(row.site.layer, int):
            step()
        reached.add(row.site.layer)

    device = Device()
    tracer = Tracer(device, plan, on_call)
    device.watch = Watch(tracer, layout=layout, whole=True)
    with device.watch:
        given = model(**kept_inputs(inputs))
    step()
    first = next((leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)), None)
    return tracer, first is None or is_finite(first)
