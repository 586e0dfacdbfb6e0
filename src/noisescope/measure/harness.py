"""Tasks of lm-evaluation-harness on a model that is already in memory, clean or under noise.

    score = run_task(model, tokenizer, "arc_easy", limit=100)
    with inject(model, noise):
        noisy = run_task(model, tokenizer, "arc_easy", limit=100)
    score.correct - noisy.correct                     paired, sample by sample

The harness does all of it: prompts, batches, scoring. Its tasks are code that you install with it, or that you name by
`include_path` (a YAML task may call Python functions beside it); tasks that it marks as unsafe are refused.
"""

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ..errors import InputError, NoisescopeError, unknown_name
from ..keys import streams_kept
from ..models.boundary import one_line, quiet
from .extras import extra

__all__ = ["HarnessScore", "run_task"]


@dataclass(frozen=True, eq=False)
class HarnessScore:
    """The accuracy of each sample, and the figure that the harness itself reports."""

    task: str
    metric: str
    """as the harness names it, such as `acc,none` or `exact_match,strict-match`"""
    correct: NDArray[np.float64]
    """for each sample 0 or 1, in the order of the task's documents"""
    reported: float
    chance: float
    """the mean of 1 / number of choices; 0 where the model writes its answer"""

    @property
    def accuracy(self) -> float:
        """The mean over samples; for most tasks the same as `reported`."""
        return float(self.correct.mean())


def run_task(
    model: nn.Module,
    tokenizer: Any,
    task: str,
    *,
    include_path: str | Path | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    num_fewshot: int | None = None,
    chat_template: bool = False,
    metric: str | None = None,
) -> HarnessScore:
    """The task's per-sample accuracy, measured by lm-evaluation-harness.

    Args:
        model: used as it is, on its device; nothing is loaded. Injected noise acts on it.
        tokenizer: the model's; a copy is used, because the harness sets its padding.
        task: one task, not a group of them.
        include_path: a directory with YAML tasks; then only those are known.
        limit: how many documents, from the first on; None for all.
        batch_size: requests that go through the model together.
        num_fewshot: examples before each question; None leaves it to the task.
        chat_template: ask in the format that the model was trained to chat in.
        metric: such as `acc_norm` or `exact_match,flexible-extract`; None takes the first that is 0 or 1 for each
            sample.
    """
    harness = extra("lm_eval", install="lm-eval", purpose="a task of lm-evaluation-harness")
    wrapper = extra("lm_eval.models.huggingface", install="lm-eval", purpose="a task of lm-evaluation-harness").HFLM
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 2):
        raise InputError(f"limit: got {limit!r}, but intervals need at least two samples")
    with _silent(task), _restored(model):
        results = harness.simple_evaluate(
            model=wrapper(pretrained=model, tokenizer=copy.deepcopy(tokenizer), batch_size=batch_size),
            tasks=[task],
            task_manager=_tasks(harness, task, include_path),
            num_fewshot=num_fewshot,
            limit=limit,
            apply_chat_template=chat_template,
            bootstrap_iters=0,
            random_seed=None,  # the caller's generators stay where they are
            numpy_random_seed=None,
            torch_random_seed=None,
        )
    return _score(task, results, metric)


def _tasks(harness: Any, task: str, include_path: str | Path | None) -> Any:
    if include_path is not None and not Path(include_path).is_dir():
        raise InputError(f"include_path {include_path}: no such directory")
    manager = harness.tasks.TaskManager(
        include_path=None if include_path is None else str(include_path), include_defaults=include_path is None
    )
    if task in manager.all_subtasks:
        return manager
    if task in manager.all_tasks:
        raise InputError(f'task "{task}" is a group of tasks; name one of them')
    if len(manager.all_subtasks) > 50:  # thousands would not fit a line
        near = str(unknown_name("task", task, manager.all_subtasks)).partition(" (")[0].rstrip(";")
        raise InputError(f"{near}; `lm_eval ls tasks` lists them")
    raise unknown_name("task", task, sorted(manager.all_subtasks))


def _score(task: str, results: Any, metric: str | None) -> HarnessScore:
    per_sample = _per_sample(results["samples"][task])
    wanted = [name for name in per_sample if metric is None or metric in (name, name.partition(",")[0])]
    for name in wanted:
        values = per_sample[name]
        if set(values) <= {0.0, 1.0}:
            chance = float(np.mean([_chance(sample) for sample in results["samples"][task]]))
            return HarnessScore(task, name, np.asarray(values), float(results["results"][task][name]), chance)
    has = ", ".join(per_sample) or "none"
    if metric is not None and not wanted:
        raise InputError(f'task "{task}": no metric "{metric}" (has: {one_line(has)})')
    raise InputError(f'task "{task}": no metric that is 0 or 1 for each sample (has: {one_line(has)})')


def _per_sample(samples: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Metric name -> one number per document, for the metrics that have one."""
    found: dict[str, dict[int, float]] = {}
    for sample in samples:
        for name in sample["metrics"]:
            if isinstance(sample[name], (bool, int, float, np.number, np.bool_)):
                found.setdefault(f"{name},{sample['filter']}", {})[sample["doc_id"]] = float(sample[name])
    return {name: [by_document[at] for at in sorted(by_document)] for name, by_document in found.items()}


def _chance(sample: dict[str, Any]) -> float:
    choices = len(sample["resps"])
    return 1 / choices if choices > 1 else 0.0


@contextmanager
def _silent(task: str) -> Iterator[None]:
    """No output of the harness inside, and whatever it raises as one line."""
    log = logging.getLogger("lm_eval")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with quiet():
            yield
    except NoisescopeError:
        raise
    except Exception as error:  # tasks are other people's code and data; what they raise means "not this task"
        raise InputError(f'task "{task}": {one_line(error)}') from error
    finally:
        log.setLevel(level)


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Afterwards each module trains or not as before, and the global generators stand where they stood.

    The harness sets a model to evaluation for good, and tasks draw from whichever generator they like.
    """
    flags = [(module, module.training) for module in model.modules()]
    try:
        with streams_kept():
            yield
    finally:
        for module, training in flags:
            module.training = training
