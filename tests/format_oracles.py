"""Number formats as others compute them: ml_dtypes for elements, torchao for scales."""

import logging
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

sys.path.append(str(Path(sys.prefix) / "oracles"))  # see oracles-apart.txt
with torch.no_grad():
    logging.disable(logging.WARNING)  # torchao speaks of its GPU kernels while it is imported
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    from torchao.quantization.quant_primitives import (
        MappingType,
        _choose_scale_float8,
        _dequantize_affine_float8,
        _quantize_affine_float8,
        choose_qparams_affine,
        dequantize_affine,
        quantize_affine,
    )

    logging.disable(logging.NOTSET)

ELEMENTS = {
    "BF16": ml_dtypes.bfloat16,
    "FP16": np.float16,
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "E3M2": ml_dtypes.float6_e3m2fn,
    "E2M3": ml_dtypes.float6_e2m3fn,
    "E2M1": ml_dtypes.float4_e2m1fn,
}
MX = {
    "mxfp8": torch.float8_e4m3fn,
    "mxfp8:e5m2": torch.float8_e5m2,
    "mxfp6": "fp6_e2m3",
    "mxfp6:e3m2": "fp6_e3m2",
    "mxfp4": torch.float4_e2m1fn_x2,
}


def elements(name: str, values: Tensor) -> Tensor:
    """Each value cast to a dtype of ml_dtypes and back."""
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(values.numpy().astype(ELEMENTS[name]).astype(np.float32))


def codes(name: str) -> Tensor:
    """Every finite number of a dtype, ascending."""
    kind = np.dtype(ELEMENTS[name])
    bits = {"E3M2": 6, "E2M3": 6, "E2M1": 4}.get(name, kind.itemsize * 8)
    every = np.arange(2**bits, dtype=f"uint{8 * kind.itemsize}").view(kind).astype(np.float32)
    return torch.from_numpy(np.unique(every[np.isfinite(every)]))


def mx(text: str, value: Tensor) -> Tensor:
    return MXTensor.to_mx(value, MX[text], 32).dequantize(torch.float32)


def nvfp4(value: Tensor) -> Tensor:
    scale = per_tensor_amax_to_scale(value.abs().max())
    return NVFP4Tensor.to_nvfp4(value, 16, per_tensor_scale=scale).dequantize(torch.float32)


def integers(value: Tensor, bits: int, block: tuple[int, int], *, symmetric: bool, scale_dtype: torch.dtype) -> Tensor:
    kind = MappingType.SYMMETRIC if symmetric else MappingType.ASYMMETRIC
    ends = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    scale, zero = choose_qparams_affine(
        value, kind, block, torch.int8, *ends, scale_dtype=torch.float32, zero_point_dtype=torch.int32
    )
    scale = scale.to(scale_dtype).float()
    stored = quantize_affine(value, block, scale, zero, torch.int8, *ends)
    return dequantize_affine(stored, block, scale, zero, torch.int8, *ends, output_dtype=torch.float32)


def float8(value: Tensor, dtype: torch.dtype, block: tuple[int, int]) -> Tensor:
    scale = _choose_scale_float8(value, list(block), dtype)
    return _dequantize_affine_float8(_quantize_affine_float8(value, scale, dtype), scale)


def usual(name: str, value: Tensor) -> Tensor:
    """A matrix in a format as it is usually stored, by the libraries above; zeros fill up its last block."""
    if name in ("bf16", "fp16"):
        return elements(name.upper(), value)
    columns = value.shape[1]
    filled = torch.nn.functional.pad(value, (0, -columns % 128))
    found = {
        "fp8_e4m3": lambda: float8(filled, torch.float8_e4m3fn, (1, filled.shape[1])),
        "fp8_e5m2": lambda: float8(filled, torch.float8_e5m2, (1, filled.shape[1])),
        "int8": lambda: integers(filled, 8, (1, filled.shape[1]), symmetric=True, scale_dtype=torch.float32),
        "int4": lambda: integers(filled, 4, (1, 128), symmetric=True, scale_dtype=torch.bfloat16),
        "nvfp4": lambda: nvfp4(filled),
    }
    return found.get(name, lambda: mx(name, filled))()[:, :columns]
