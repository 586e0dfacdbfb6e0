"""The model that a report is of, as far as training leaves it recognisable: its layers and its number of weights.

Weights themselves change with every step, so their fingerprint does not tell. Adapters of PEFT are no part of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from ..errors import InputError, quoted
from ..report import Report

__all__ = ["Subject"]


@dataclass(frozen=True)
class Subject:
    """What a report says of its model."""

    name: str
    layers: int
    parameters: int

    @classmethod
    def of_report(cls, report: Report) -> "Subject":
        """The model that was diagnosed."""
        sections = report.sections
        return cls(
            str(sections["config"]["model"]),
            int(sections["coverage"]["layers"]),
            int(sections["environment"]["parameters"]),
        )

    @classmethod
    def of_model(cls, model: nn.Module, *, layers: int) -> "Subject":
        """That model."""
        return cls(type(model).__name__, layers, _own_parameters(model))

    def check(self, model: nn.Module, *, layers: int) -> None:
        """Raises for a model that is built otherwise."""
        parameters = _own_parameters(model)
        if (layers, parameters) != (self.layers, self.parameters):
            raise InputError(
                f"report: is of another model ({quoted(self.name)}, {self.layers} layers, {self.parameters} "
                f"parameters; this one has {layers} layers, {parameters} parameters); diagnose the model that you train"
            )


def _own_parameters(model: nn.Module) -> int:
    """How many weights the model has without adapters, which PEFT keeps in dictionaries by their names."""
    names = getattr(model, "peft_config", None) or ()
    dictionaries = [one for one in model.modules() if isinstance(one, (nn.ModuleDict, nn.ParameterDict))]
    adapters = {id(weight) for one in dictionaries for name in names if name in one for weight in _weights(one[name])}
    return sum(weight.numel() for weight in model.parameters() if id(weight) not in adapters)


def _weights(adapter: nn.Module | nn.Parameter) -> Iterable[nn.Parameter]:
    return adapter.parameters() if isinstance(adapter, nn.Module) else (adapter,)
