"""Checks that an operator fits into the memory of a device, and a call of a kernel into that of this host."""

from __future__ import annotations

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Device
from ekc.errors import DeviceError
from ekc.host_memory import format_bytes
from ekc.ir.operator import Operator
from ekc.ir.tensor_memory import check_host_memory, check_memory_fits, format_byte_total

_SHADOW_BYTES_PER_CELL = 10
"""Bytes that the sanitizer keeps per cell: last writer, last reader, and the state of the cache."""
_MAX_CELL_BYTES = 4
"""Bytes of a cell at most; fewer where the smallest element is smaller."""
_OUTPUT_COPIES = 4
"""Copies of an output on the host: blank, start, result and mask of written elements."""


def check_device_memory(op: Operator, device: Device) -> None:
    """Raises `InvalidInput` for an operator whose inputs and result do not fit the device."""
    if device.memory_bytes is not None:
        needed = {spec.name: spec.bytes for spec in (*op.inputs, *op.outputs)}
        available = f"{device.label} has {format_bytes(device.memory_bytes)}"
        check_memory_fits(op, op.name, needed, device.memory_bytes, available)


def check_kernel_memory(kernel: CompiledKernel, label: str, memory_bytes: int) -> None:
    """Raises `DeviceError` for a kernel whose tensors, those between its launches included, do not fit."""
    sizes = {n: s for one in kernel.launches for n, s in zip(one.arguments, one.argument_bytes, strict=True)}
    if sum(sizes.values()) > memory_bytes:
        raise DeviceError(
            f"memory: {kernel.name} needs {format_byte_total(sizes)}, "
            f"{label} has {format_bytes(memory_bytes)}; keep less between its launches"
        )


def check_emulation_memory(op: Operator, kernel: CompiledKernel) -> None:
    """Raises `InvalidInput` where this host has too little memory for a call of the PTX machine: every tensor
    once more, the cells of the sanitizer, and outputs several times."""
    specs = {name: op.tensors[name] for one in kernel.launches for name in one.arguments}
    cell_bytes = min(_MAX_CELL_BYTES, *(spec.dtype.bytes for spec in specs.values()))
    written = {one.arguments[-1] for one in kernel.launches}
    times = {
        name: 1 + _SHADOW_BYTES_PER_CELL / cell_bytes + _OUTPUT_COPIES * (name in written) for name in specs
    }
    check_host_memory(op, f"a call of {op.name} on the CPU", times, ", or `ekc run`, which runs some blocks")


def check_transfer_memory(op: Operator) -> None:
    """Raises `InvalidInput` where this host has too little memory for the arrays of a call on a GPU."""
    times = dict.fromkeys((t.name for t in op.inputs), 2.0) | dict.fromkeys((t.name for t in op.outputs), 3.0)
    check_host_memory(
        op, f"a call of {op.name} with arrays of the host", times, ", or pass arrays on the GPU"
    )
