"""The tools that read exported plans, as far as they read them: their own classes, without what needs a GPU.

Of packages that do much when they are imported, only the module with the classes is loaded, and forgotten again: other
libraries look into `sys.modules` for what is installed. AutoRound also changes datasets, torch and transformers for
everyone in the process; that is taken back.
"""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import datasets
import torch
import transformers.modeling_utils

ORACLES = Path(sys.prefix) / "oracles"  # see oracles-apart.txt


@contextmanager
def beside(directory: Path) -> Iterator[None]:
    """Packages of a directory can be imported, and say nothing while they are."""
    sys.path.append(str(directory))
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        sys.path.remove(str(directory))


@contextmanager
def alone(root: Path, *packages: str, **others: ModuleType) -> Iterator[None]:
    """Modules of these packages can be imported without what the packages do themselves; all are forgotten after."""
    before = dict(sys.modules)
    for name in packages:
        package = ModuleType(name)
        package.__path__ = [str(root / name.replace(".", "/"))]
        package.__spec__ = ModuleSpec(name, None, is_package=True)
        package.__version__ = "alone"  # type: ignore[attr-defined]
        sys.modules[name] = package
    sys.modules.update({name.replace("__", "."): module for name, module in others.items()})
    first = {name.split(".")[0] for name in (*packages, *(name.replace("__", ".") for name in others))}
    try:
        with beside(root):
            yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] in first]:
            del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if name.split(".")[0] in first})


@cache
def torchao() -> Any:
    """Its configs and how it applies them."""
    with beside(ORACLES):
        return SimpleNamespace(config=import_module("torchao.core.config"), api=import_module("torchao.quantization"))


@contextmanager
def as_before(*owners: Any) -> Iterator[None]:
    """Attributes of modules and classes are put back after."""
    before = [dict(vars(owner)) for owner in owners]
    try:
        yield
    finally:
        for owner, attributes in zip(owners, before, strict=True):
            for name in set(vars(owner)) - set(attributes):
                delattr(owner, name)
            for name, value in attributes.items():
                if vars(owner)[name] is not value:
                    setattr(owner, name, value)


@cache
def llm_compressor() -> Any:
    """Its recipes, and compressed-tensors, whose schemes they are of; it would import AutoRound if it were there."""
    sys.modules["auto_round"] = None  # type: ignore[assignment]
    try:
        with beside(ORACLES):
            recipe = import_module("llmcompressor.recipe")
            recipe.Recipe.create_instance("quant_stage: {quant_modifiers: {QuantizationModifier: {scheme: W8A16}}}")
            return SimpleNamespace(
                recipe=recipe,
                calibration=import_module("llmcompressor.modifiers.quantization.calibration"),
                schemes=import_module("compressed_tensors.quantization.quant_scheme"),
                forward=import_module("compressed_tensors.quantization.lifecycle.forward"),
            )
    finally:
        del sys.modules["auto_round"]


@contextmanager
def auto_round() -> Iterator[Any]:
    """Its schemes, its data types, and how it reads a layer_config; its functions import others while they run."""
    changed = (datasets, torch.Tensor, transformers.modeling_utils)
    with as_before(*changed), alone(ORACLES, "auto_round", "auto_round.compressors"):
        yield SimpleNamespace(
            schemes=import_module("auto_round.schemes"),
            types=import_module("auto_round.data_type"),
            resolver=import_module("auto_round.compressors.layer_config_resolver"),
        )


@cache
def modelopt() -> Any:
    """The classes of its configuration."""
    packages = ("modelopt", *(f"modelopt.torch{name}" for name in ("", ".quantization", ".utils", ".opt")))
    with alone(ORACLES, *packages):
        return import_module("modelopt.torch.quantization.config")


def gptqmodel() -> Any | None:
    """The module of its configuration; None where it is not installed, as it is published as source alone.

    Its regular expressions are PCRE's; what an export writes means the same to `re`.
    """
    found = find_spec("gptqmodel")
    if found is None or not found.submodule_search_locations:
        return None
    logger, adapter, pcre = ModuleType("logger"), ModuleType("adapter"), ModuleType("pcre")
    logger.setup_logger = lambda: logging.getLogger("gptqmodel")  # type: ignore[attr-defined]
    adapter.Lora, adapter.normalize_adapter = object, lambda given: given  # type: ignore[attr-defined]
    pcre.compile = re.compile  # type: ignore[attr-defined]
    others = {"gptqmodel__utils__logger": logger, "gptqmodel__adapter__adapter": adapter, "pcre": pcre}
    packages = ("gptqmodel", "gptqmodel.quantization", "gptqmodel.utils", "gptqmodel.adapter")
    with alone(Path(found.submodule_search_locations[0]).parent, *packages, **others):
        return import_module("gptqmodel.quantization.config")
