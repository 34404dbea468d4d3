"""cuBLASLt and cuDNN as contenders: the algorithms that their heuristics propose for an item, called in the
GPU's worker process as ekc's own kernels are."""

from __future__ import annotations

from benchmarks.gpu.contenders import Contender, Ours
from benchmarks.gpu.items import Item
from benchmarks.gpu.kit import Kit
from ekc.devices.device import LibraryDevice
from ekc.errors import DeviceError
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.runtime.verify import WRONG_RESULT, verify_library_kernel

MAX_ALGORITHMS = 16
"""Algorithms of a library for an item; cuDNN has eight."""


def find_rivals(kit: Kit, item: Item, expected: ReferenceEvaluator) -> tuple[list[Contender], dict[str, str]]:
    """The algorithms that compute an item, in the library's order, and why others are absent: the library, or
    an algorithm that is wrong or fails."""
    library = "cuDNN" if item.kind == "conv2d" else "cuBLAS"
    device = kit.device
    if not isinstance(device, LibraryDevice):
        return [], {library: f"{kit.label} runs no library"}
    try:
        kernels = device.list_library_kernels(item.op, MAX_ALGORITHMS)
    except DeviceError as problem:
        return [], {library: str(problem)}
    contenders: list[Contender] = []
    absent: dict[str, str] = {}
    for kernel in kernels:
        try:
            verdict = verify_library_kernel(device, kernel, expected)
        except DeviceError as problem:
            absent[kernel.name] = str(problem)
            continue
        if verdict.startswith(WRONG_RESULT):
            absent[kernel.name] = verdict
        else:
            contenders.append(Ours(kernel.name, kit.device, kernel))
    return contenders, absent
