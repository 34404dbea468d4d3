"""What the templates print of products of a warpgroup: their functions, and where the tiles of each begin."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ekc.codegen.around import kept_place
from ekc.codegen.names import Names
from ekc.codegen.walks import in_copy
from ekc.ir.access import Access, Buffer, moved
from ekc.ir.descriptors import across, first
from ekc.ir.dtypes import dtype_of
from ekc.ir.linear import Linear
from ekc.ir.nodes import Kernel, LoopNode, MmaNode, SharedFactor, walk
from ekc.ir.swizzle import LINE_BYTES
from ekc.ir.tensor_core import SUMS
from ekc.ir.warpgroup import BEGIN, COMMIT, SEEN, WAIT, Descriptor, GroupInstruction, GroupProduct


def group_functions(kernels: Iterable[Kernel]) -> dict[str, Any]:
    """The functions around kernels that have products of a warpgroup; nothing where none has."""
    found = {_instruction(n) for k in kernels for n in products(k)}
    functions = [_function_text(f) for f in sorted(found, key=lambda f: f.function)]
    return {
        "group_products": functions,
        "seen": SEEN,
        "begin": BEGIN,
        "commit_group": COMMIT,
        "wait_group": WAIT,
    }


def products(kernel: Kernel) -> list[MmaNode]:
    """Those of a launch that a warpgroup does."""
    return [n for n in walk(kernel.body) if isinstance(n, MmaNode) and isinstance(n.a, SharedFactor)]


def _instruction(node: MmaNode) -> GroupInstruction:
    tile = node.tile
    assert isinstance(tile.product, GroupProduct)
    assert tile.strips is not None
    ways = [across(node, f) for f in (node.a, node.b) if isinstance(f, SharedFactor)]
    return GroupInstruction(tile.product, int(tile.strips.extent), bool(ways[0]), bool(ways[1]))


def _function_text(instruction: GroupInstruction) -> dict[str, Any]:
    product = instruction.product
    sums = [f'"+f"({_sum(product.sum_place(element))})' for element in range(instruction.sums)]
    return {
        "name": instruction.function,
        "what": f"{product.sized(instruction.strips)} of {product.dtype}",
        "type": dtype_of(product.dtype.accumulator).cuda,
        "ptx": textwrap.wrap(instruction.ptx, 96, drop_whitespace=False, break_long_words=False),
        "sums": [", ".join(sums[i : i + SUMS]) for i in range(0, len(sums), SUMS)],
    }


def _sum(place: tuple[int, int, int]) -> str:
    """`c[3 * strip + half]`."""
    steps = zip(place, ("strip", "half", "pair"), strict=True)
    terms = [name if n == 1 else f"{n} * {name}" for n, name in steps if n]
    return f"c[{' + '.join(terms) or '0'}]"


def group_product_text(node: MmaNode, names: Names, places: Mapping[str, str]) -> dict[str, Any]:
    """The call of a product: where its sums begin and how far apart they are, and its descriptors; `places`
    tells by tile where it begins."""
    target, tile = node.compute.target, node.tile
    assert target.buffer is not None
    assert tile.strips is not None
    begin = moved(target, {x.name: Linear() for x in tile.inner})
    steps = dict(target.address.terms)
    apart = [int(steps.get(x.name, 0)) for x in (tile.strips, tile.rows, tile.columns)]
    factors = [_described(node, f, places) for f in (node.a, node.b) if isinstance(f, SharedFactor)]
    name = f"{_instruction(node).function}<{', '.join(map(str, apart))}>"
    return {"call": f"{name}(&{names.cell(target.buffer, begin.cell)}, {', '.join(factors)});"}


def waited(kernel: Kernel, names: Names) -> str:
    """The call that waits for products: it takes all sums that a thread holds."""
    (held,) = {n.compute.target.buffer for n in products(kernel)}
    assert held is not None
    return f"wait_for_products<{int(held.elements)}>(&{names[held.name]}{'[0]' * len(held.sizes)});"


def _described(node: MmaNode, factor: SharedFactor, places: Mapping[str, str]) -> str:
    buffer = factor.source.buffer
    assert buffer is not None
    bits = Descriptor.of(bool(across(node, factor)), int(buffer.rows), LINE_BYTES).bits
    return f"described<{bits:#x}>({places[buffer.name]})"


@dataclass(frozen=True)
class Begin:
    """Where tiles begin: the text that tells it before the loop, and the text of one inside."""

    start: dict[str, Any]
    source: str


def begins_before(
    node: MmaNode, factor: SharedFactor, names: Names, loops: Mapping[str, LoopNode], copy: str
) -> Begin:
    """Where the tiles of a factor begin, `loops` being those between the one that brings them and their use.

    &B_shared[k_0_copy][k_1 * 16][j_1 * 64]
      ->   B_shared_begin + k_0_copy * 16384 + k_1 * 2048 + paneled<..>(j_1 * 64) * 2
    """
    begin = first(node, factor)
    buffer = begin.buffer
    assert buffer is not None
    (start,) = names.free([f"{names[buffer.name]}_begin"])
    inside = _of(begin, loops)
    outside = replace(names, zero=names.zero | {a for a, _ in inside.terms if isinstance(a, str)})
    text = {
        "declare": f"unsigned int {start};",
        "loops": [],
        "target": start,
        "value": kept_place(outside.cell(buffer, begin.cell, "0")),
        "what": names[buffer.name],
    }
    place = f"{start} + {in_copy(buffer, copy)}"
    further = _further(buffer, inside, names)
    return Begin(text, f"{place} + {further}" if further else place)


def _of(begin: Access, loops: Mapping[str, LoopNode]) -> Linear:
    """The part of an address that some loops move."""
    return Linear(tuple((a, c) for a, c in begin.address.terms if isinstance(a, str) and a in loops))


def _further(buffer: Buffer, moved: Linear, names: Names) -> str:
    """Bytes that a form leads further on: by whole rows, which are a number apart, and within a row.

    Tiles begin in the first line of a pattern, where the swizzle changes nothing.
    """
    width, size = int(buffer.width), buffer.dtype.bytes
    rows = tuple((a, int(c) // width * buffer.panel * size) for a, c in moved.terms if int(c) % width == 0)
    within = names.linear(Linear(tuple(t for t in moved.terms if int(t[1]) % width)))
    parts = [names.linear(Linear(rows))] if rows else []
    if within != "0":
        placed = f"({within})" if width == buffer.panel else names.placed(replace(buffer, swizzle=1), within)
        parts.append(f"{placed} * {size}")
    return " + ".join(part for part in parts if part != "0")
