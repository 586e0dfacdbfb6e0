"""Putting noise into a running model, and taking it out again without a trace.

The only room that changes what a model computes. The way of a value: the function mode or a module hook sees an
operator (`watching`), the scope says where that is (`scope`), places say whether the observer wants it (`places`), its
value is shown (`showing`), the injection disturbs it and books it (`injecting`, `statistics`). Gradients are seen by
visitors that are put on an operator's operands (`operands`, `gradients`).
"""

from .attention import attention_in_steps, plain_call, sdpa_arguments
from .calls import Call, by_position, plain_name
from .compiled import refuse_compiled
from .gradients import take_value
from .injecting import Injection, Scales, inject, is_injecting, multipliers
from .modes import modes_replaced
from .places import CallObserver, Observer
from .replacing import Replacement, forwards_replaced, unshadowed
from .scope import is_probing
from .statistics import InjectionStats
from .survey import Coverage, is_unchanged_by_watching, survey
from .watching import Watch, unwatched

__all__ = [
    "Call",
    "CallObserver",
    "Coverage",
    "Injection",
    "InjectionStats",
    "Observer",
    "Replacement",
    "Scales",
    "Watch",
    "attention_in_steps",
    "by_position",
    "forwards_replaced",
    "inject",
    "is_injecting",
    "is_probing",
    "is_unchanged_by_watching",
    "modes_replaced",
    "multipliers",
    "plain_call",
    "plain_name",
    "refuse_compiled",
    "sdpa_arguments",
    "survey",
    "take_value",
    "unshadowed",
    "unwatched",
]
