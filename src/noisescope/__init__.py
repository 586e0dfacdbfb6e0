"""noisescope: an oscilloscope for the numerics of language models.

    import noisescope as ns

    with ns.inject(model, ns.RelativeGaussian(0.05), layers=[9, 10, 11], operators=["softmax"]) as run:
        logits = model(**batch).logits
    print(run.stats)

Names are imported when they are first used, so that `import noisescope` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .capturing import Capture as Capture
    from .capturing import capture as capture
    from .errors import NoisescopeError as NoisescopeError
    from .injection import Injection as Injection
    from .injection import inject as inject
    from .injection import survey as survey
    from .noise import AbsoluteGaussian as AbsoluteGaussian
    from .noise import BitFlip as BitFlip
    from .noise import RelativeBias as RelativeBias
    from .noise import RelativeGaussian as RelativeGaussian
    from .noise import StuckAt as StuckAt
    from .noise import SystematicBias as SystematicBias
    from .noise import Uniform as Uniform
    from .noise import make_noise as make_noise

__version__ = "0.1.0"

_HOMES = {
    "AbsoluteGaussian": "noise",
    "BitFlip": "noise",
    "Capture": "capturing",
    "Injection": "injection",
    "NoisescopeError": "errors",
    "RelativeBias": "noise",
    "RelativeGaussian": "noise",
    "StuckAt": "noise",
    "SystematicBias": "noise",
    "Uniform": "noise",
    "capture": "capturing",
    "inject": "injection",
    "make_noise": "noise",
    "survey": "injection",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - one list of names, kept beside where each lives


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
