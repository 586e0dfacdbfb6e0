"""Where adapters of PEFT put what they train: the original stays in the model beside it, and does not run.

model.norm.original_module                      the norm as it was
model.norm.modules_to_save.default              the copy that is trained, of the adapter `default`
"""

__all__ = ["is_replaced", "without_adapter"]

_TRAINED = ("modules_to_save", "ln_tuning_layers")
_REPLACED = ("original_module", "base_layer")


def is_replaced(path: str) -> bool:
    """True for an original that an adapter's copy runs in the place of."""
    return path.rpartition(".")[2] in _REPLACED


def without_adapter(path: str) -> str:
    """Where a module is in the model without adapters."""
    above, _, name = path.rpartition(".")
    if name in _REPLACED:
        return above
    above, _, keeper = above.rpartition(".")
    return above if keeper in _TRAINED else path
