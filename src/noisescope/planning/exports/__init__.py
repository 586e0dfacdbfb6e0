"""Precision plans as other tools read them: one file a tool, picked up by the registry in `export`.

`planned` is what an export reads of a plan. A tool that cannot say what a plan says refuses with one sentence; none
replaces a format by another without saying so.
"""

from . import auto_round, bitsandbytes, gptqmodel, llama_cpp, llm_compressor, modelopt, torchao
from .export import EXPORTS, Export, Exports, export, exports

__all__ = [
    "EXPORTS",
    "Export",
    "Exports",
    "auto_round",
    "bitsandbytes",
    "export",
    "exports",
    "gptqmodel",
    "llama_cpp",
    "llm_compressor",
    "modelopt",
    "torchao",
]
