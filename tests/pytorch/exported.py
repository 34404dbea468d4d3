"""Modules exported to ONNX; large weights are left out, as if their file were missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir
import torch

LARGE = 100_000
"""Elements from which on a weight is left out."""


def export_module(module: Any, inputs: Mapping[str, Any], **options: Any) -> Any:
    """The ONNX model that `torch.onnx.export` makes of a module in inference."""
    with torch.no_grad():
        program = torch.onnx.export(module.eval(), kwargs=dict(inputs), dynamo=True, verbose=False, **options)
    for name, value in program.model.graph.initializers.items():
        weight = value.const_value
        is_float = weight.dtype in (onnx_ir.DataType.FLOAT, onnx_ir.DataType.FLOAT16)
        if weight.size > LARGE and is_float:
            value.const_value = onnx_ir.ExternalTensor(
                "weights.bin", 0, weight.nbytes, weight.dtype, shape=weight.shape, name=name
            )
    return onnx_ir.to_proto(program.model)


def give_memory(module: Any) -> Any:
    """A module of the meta device on the CPU. Large weights are not written to; small ones are random, so
    that none of them is left out as a zero."""
    module = module.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.numel() > LARGE:
                continue
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5, generator=generator)
            else:
                tensor.zero_()
    return module


def make_zeros(inputs: Any) -> Any:
    """The inputs of the meta device as zeros on the CPU."""
    if isinstance(inputs, Mapping):
        return {name: make_zeros(value) for name, value in inputs.items()}
    if isinstance(inputs, list):
        return [make_zeros(value) for value in inputs]
    return torch.zeros(inputs.shape, dtype=inputs.dtype)
