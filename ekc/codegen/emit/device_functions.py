"""Device functions that kernels may call; those that the text of the kernels names are printed before it.

A kernel's text is the only place that says which functions it needs: templates, names and element types all
write calls, and constants that nothing uses are dropped with the calls in them. So the set of words of the
finished text decides, for all functions alike.
"""

from __future__ import annotations

import textwrap
from itertools import product
from typing import Any

from ekc.codegen.emit.mma import name_load_function, name_product_function
from ekc.ir.dtypes import parse_dtype
from ekc.ir.hardware.cp_async import ASYNC_COPIES_BY_BYTES, CP_ASYNC_COMMIT_PTX, CP_ASYNC_WAIT_PTX
from ekc.ir.hardware.mma import MMA_INSTRUCTIONS, SUMS_PER_LANE, LdmatrixInstruction, MmaInstruction
from ekc.ir.hardware.wgmma import (
    MAX_STRIPS,
    PROXY_FENCE_PTX,
    WGMMA_COMMIT_PTX,
    WGMMA_FAMILIES,
    WGMMA_FENCE_PTX,
    WGMMA_WAIT_PTX,
    WgmmaInstruction,
)

_LOADS = {
    name_load_function(load): load
    for load in (LdmatrixInstruction(count, turned) for count in (1, 2, 4) for turned in (False, True))
}
"""Every `ldmatrix`, by the name of its function; so the tables below."""
_PRODUCTS = {name_product_function(instruction): instruction for instruction in MMA_INSTRUCTIONS}
_GROUP_PRODUCTS = {
    instruction.function_name: instruction
    for instruction in (
        WgmmaInstruction(*choice)
        for choice in product(WGMMA_FAMILIES, range(1, MAX_STRIPS + 1), (False, True), (False, True))
    )
}


def build_device_functions(words: frozenset[str]) -> dict[str, Any]:
    """Values of `kernel.cu.j2` for the functions that a text of such words calls."""
    groups = sorted(words & _GROUP_PRODUCTS.keys())
    widths = [n for n in ASYNC_COPIES_BY_BYTES if words & {f"copy_async_{n}", f"copy_async_{n}_or_zeros"}]
    return {
        "used": words,
        "copies": [ASYNC_COPIES_BY_BYTES[n] for n in sorted(widths)],
        "commit": CP_ASYNC_COMMIT_PTX,
        "wait": CP_ASYNC_WAIT_PTX,
        "matrix_loads": [_build_load_function(_LOADS[name]) for name in sorted(words & _LOADS.keys())],
        "products": [_build_product_function(_PRODUCTS[name]) for name in sorted(words & _PRODUCTS.keys())],
        "group_products": [_build_group_function(_GROUP_PRODUCTS[name]) for name in groups],
        "proxy_fence": PROXY_FENCE_PTX,
        "fence": WGMMA_FENCE_PTX,
        "commit_group": WGMMA_COMMIT_PTX,
        "wait_group": WGMMA_WAIT_PTX,
    }


def _build_load_function(load: LdmatrixInstruction) -> dict[str, str]:
    registers = [f"r{i}" for i in range(load.matrix_count)]
    return {
        "name": name_load_function(load),
        "parameters": ", ".join(f"unsigned int& {r}" for r in registers),
        "ptx": load.ptx,
        "outputs": ", ".join(f'"=r"({r})' for r in registers),
    }


def _build_product_function(instruction: MmaInstruction) -> dict[str, str]:
    acc = parse_dtype(instruction.dtype.default_accumulator)
    sums = [f"c{i}" for i in range(SUMS_PER_LANE)]
    sizes = {"a": instruction.a_registers, "b": instruction.b_registers}
    factors = [f"const unsigned int (&{name})[{n}]" for name, n in sizes.items()]
    return {
        "name": name_product_function(instruction),
        "what": f"{instruction.name} of {instruction.dtype}",
        "parameters": ", ".join([*(f"{acc.cuda_name}& {c}" for c in sums), *factors]),
        "ptx": instruction.ptx,
        "sums": ", ".join(f'"+{"r" if acc.is_integer else "f"}"({c})' for c in sums),
        "factors": ", ".join(f'"r"({name}[{i}])' for name, n in sizes.items() for i in range(n)),
    }


def _build_group_function(instruction: WgmmaInstruction) -> dict[str, Any]:
    family = instruction.family
    places = map(family.find_sum_element, range(instruction.sum_count))
    sums = [f'"+f"({_format_sum(place)})' for place in places]
    return {
        "name": instruction.function_name,
        "what": f"{family.format_name(instruction.strip_count)} of {family.dtype}",
        "type": parse_dtype(family.dtype.default_accumulator).cuda_name,
        "ptx": textwrap.wrap(instruction.ptx, 96, drop_whitespace=False, break_long_words=False),
        "sums": [", ".join(sums[i : i + SUMS_PER_LANE]) for i in range(0, len(sums), SUMS_PER_LANE)],
    }


def _format_sum(place: tuple[int, int, int]) -> str:
    """`c[3 * strip + half]`."""
    steps = zip(place, ("strip", "half", "pair"), strict=True)
    terms = [name if n == 1 else f"{n} * {name}" for n, name in steps if n]
    return f"c[{' + '.join(terms) or '0'}]"
