"""Where arrays may lie that a kernel is called on: at whole multiples of its widest access, and apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.cuda.arrays import DeviceArray
from ekc.errors import InvalidInput
from ekc.ir.operator import TensorSpec

_ACCESS_PATTERN = re.compile(
    r"\b(?:ld|st|red|atom)(?:\.\w+)*?\.global(?:\.\w+)*?(?:\.v(\d))?\.[a-z]+(\d+)(?:x(\d))?\s"
)
_ASYNC_COPY_PATTERN = re.compile(r"\bcp\.async\.c[ag]\.shared\.global\S*\s+[^,;]+,[^,;]+,\s*(\d+)")


def check_addresses(
    compiled: CompiledKernel,
    arrays_by_name: Mapping[str, DeviceArray],
    inputs: tuple[TensorSpec, ...],
    out: TensorSpec,
) -> None:
    """Raises `InvalidInput` for an array that begins where the kernel cannot read it, and for a result that
    would be written over an input while that is read."""
    width = find_widest_access(compiled.ptx)
    for name, array in arrays_by_name.items():
        if array.address % width:
            raise InvalidInput(
                f"{name} begins {array.address % width} bytes past a multiple of {width}, and "
                f"{compiled.name} moves {width} bytes at a time: pass a copy of it"
            )
    begin = arrays_by_name[out.name].address
    for spec in inputs:
        at = arrays_by_name[spec.name].address
        if begin < at + spec.bytes and at < begin + out.bytes:
            raise InvalidInput(f"out overlaps {spec.name}, which is read meanwhile: pass memory of its own")


@lru_cache(maxsize=1024)
def find_widest_access(ptx: str) -> int:
    """Bytes of the widest access to global memory, which has to be aligned to as many."""
    found = [
        int(lanes or 1) * int(bits) * int(pair or 1) // 8
        for lanes, bits, pair in _ACCESS_PATTERN.findall(ptx)
    ]
    return max([1, *found, *map(int, _ASYNC_COPY_PATTERN.findall(ptx))])
