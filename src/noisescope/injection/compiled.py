"""The refusal of compiled and transformed code: noise cannot reach inside, and must not pass for having been there.

Decision 0002 says why.
"""

from collections.abc import Iterable

import torch
from torch import nn

from ..errors import CompiledModel, NothingMatched

__all__ = ["compiled", "refuse_compiled", "refuse_transforms", "under_compile"]


def under_compile() -> bool:
    """True while dynamo traces this code, or runs it as the eager rest of a compiled call."""
    return torch.compiler.is_compiling() or torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None


def compiled(module: nn.Module | None) -> CompiledModel:
    """The refusal, with the way out."""
    name = type(module).__name__ if module is not None else "this function"
    return CompiledModel(
        f"{name} is compiled, noise cannot reach inside; inject the original module (`model._orig_mod`), or run "
        'under torch.compiler.set_stance("force_eager")'
    )


def refuse_compiled(modules: Iterable[nn.Module]) -> None:
    """Raises for a model of compiled or scripted modules, unless torch is told to run them eagerly."""
    for module in modules:
        if isinstance(module, torch.jit.ScriptModule):
            raise CompiledModel(
                f"{type(module).__name__} is scripted, noise cannot reach inside; use the Python module"
            )
        if ("_orig_mod" in module._modules or module._compiled_call_impl is not None) and not _forced_eager():
            raise compiled(getattr(module, "_orig_mod", module))


def refuse_transforms(model: nn.Module) -> None:
    """Raises inside `torch.func` transforms, whose values stand for many and have no memory to disturb."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise NothingMatched(
            f"{type(model).__name__} runs inside a torch.func transform (vmap, grad, jvp), noise cannot reach inside; "
            "call the model plainly"
        )


def _forced_eager() -> bool:
    """True if the user has told torch to run compiled code eagerly; asked only where dynamo is loaded already."""
    from torch._dynamo import eval_frame

    return bool(eval_frame._stance.stance == "force_eager")
