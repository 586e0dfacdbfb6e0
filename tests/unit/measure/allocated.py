"""How much memory a computation takes at once, at least: its largest new tensor."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that is made, and is no view of one that was there."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        given = {each.untyped_storage().data_ptr() for each in arguments if isinstance(each, torch.Tensor)}
        for each in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, each.untyped_storage().nbytes())
        return made
