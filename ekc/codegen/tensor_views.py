"""What the templates print of tensor cores: fragments taken out of shared memory, and products of a warp."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ekc.codegen.indices import digit
from ekc.codegen.names import Names
from ekc.ir.access import Access, moved
from ekc.ir.dtypes import BFLOAT16, FLOAT16, TF32, DType, dtype_of
from ekc.ir.fragment_loads import HIGH, LANES, LOW, ROW, fit, held, pairs, pointed
from ekc.ir.linear import Linear
from ekc.ir.nodes import FragmentNode, Kernel, MmaNode, walk
from ekc.ir.patterns.warp import WARP
from ekc.ir.tensor_core import SUMS, MatrixLoad, Product

_PARTS = {ROW: "matrix_row", LOW: "matrix_low", HIGH: "matrix_high"}


def lane_lines(kernel: Kernel) -> list[str]:
    """The parts of a lane's number that tell which row of which matrix it points at."""
    if not any(_matrix_load(n) for n in walk(kernel.body) if isinstance(n, FragmentNode)):
        return []
    lines, below = [], 1
    for part, extent in LANES.items():
        slowest = below * extent == WARP
        lines.append(f"const int {_PARTS[part]} = {digit('threadIdx.x', below, extent, slowest)};")
        below *= extent
    return lines


def needed(kernels: list[Kernel]) -> dict[str, Any]:
    """The instructions that some kernels use, for the functions around them."""
    nodes = [node for kernel in kernels for node in walk(kernel.body)]
    loads = {_matrix_load(n) for n in nodes if isinstance(n, FragmentNode)} - {None}
    products = {n.tile.product for n in nodes if isinstance(n, MmaNode)}
    of_warps = [p for p in products if isinstance(p, Product)]
    return {
        "matrix_loads": [_load_text(x) for x in sorted(filter(None, loads), key=_load_name)],
        "products": [_product_text(p) for p in sorted(of_warps, key=_product_name)],
    }


def _load_text(load: MatrixLoad) -> dict[str, str]:
    registers = [f"r{i}" for i in range(load.count)]
    return {
        "name": _load_name(load),
        "parameters": ", ".join(f"unsigned int& {r}" for r in registers),
        "ptx": load.ptx,
        "outputs": ", ".join(f'"=r"({r})' for r in registers),
    }


def _product_text(product: Product) -> dict[str, str]:
    acc = dtype_of(product.dtype.accumulator)
    sums = [f"c{i}" for i in range(SUMS)]
    sizes = {"a": product.a_registers, "b": product.b_registers}
    factors = [f"const unsigned int (&{name})[{n}]" for name, n in sizes.items()]
    return {
        "name": _product_name(product),
        "what": f"{product.name} of {product.dtype}",
        "parameters": ", ".join([*(f"{acc.cuda}& {c}" for c in sums), *factors]),
        "ptx": product.ptx,
        "sums": ", ".join(f'"+{"r" if acc.integer else "f"}"({c})' for c in sums),
        "factors": ", ".join(f'"r"({name}[{i}])' for name, n in sizes.items() for i in range(n)),
    }


def _product_name(product: Product) -> str:
    return f"{product.name.replace('.', '_')}_{product.dtype}"


def _load_name(load: MatrixLoad) -> str:
    return f"load_matrices_{load.count}{'_transposed' * load.transposed}"


def _matrix_load(node: FragmentNode) -> MatrixLoad | None:
    """The instruction that fills a fragment (two of them, where they pair), if one can."""
    found = fit(node)
    return MatrixLoad(node.registers * int(pairs(node)), not found.along) if found.any else None


def rows_of(node: FragmentNode) -> Access | None:
    """The row that a lane points at, in terms of its number's parts; None where no instruction fits."""
    load = _matrix_load(node)
    return moved(node.source, pointed(node, load.transposed, filled(node) > 1)) if load else None


def with_lane_parts(names: Names) -> Names:
    """Names that know the parts of a lane's number."""
    return names.also(_PARTS)


def fragment_text(node: FragmentNode, names: Names, copy: str, source: str) -> dict[str, Any]:
    """A fragment's registers and how they are filled: from `source`, where that says where a lane's rows lie,
    else from the copy of a pipelined tile that `copy` picks."""
    name, load = names[node.stage.buffer.name], _matrix_load(node)
    pair = filled(node)
    extents = [int(x.extent) for x in node.tiles]
    steps = [1] * len(extents)
    if pair > 1:
        steps[-1] = pair
    loops = [
        {"name": names[x.name], "extent": n, "step": s}
        for x, n, s in zip(node.tiles, extents, steps, strict=True)
    ]
    text = {
        "what": f"{names[node.stage.staging.source]} -> {name}",
        "declare": f"unsigned int {name}{''.join(f'[{n}]' for n in extents)}[{node.registers}];",
        "loops": loops,
    }
    row = rows_of(node)
    if load is None or row is None:
        return text | {"function": "", "words": list(_words(node, names, copy))}
    targets = [
        f"{_cell(node, names, fragment)}[{r}]" for fragment in range(pair) for r in range(node.registers)
    ]
    rounded = targets if node.source.dtype is TF32 else []
    source = source or f"shared_place(&{with_lane_parts(names).cell(_shared(node), row.cell, copy)})"
    return text | {"function": _load_name(load), "targets": targets, "source": source, "rounded": rounded}


def filled(node: FragmentNode) -> int:
    """Fragments that one load fills."""
    return int(pairs(node)) if _matrix_load(node) else 1


def _shared(node: FragmentNode) -> Any:
    assert node.source.buffer is not None
    return node.source.buffer


def _cell(node: FragmentNode, names: Names, further: int = 0) -> str:
    """The fragment that the loops around pick, or one `further` along the innermost."""
    forms = [Linear(((x.name, 1),)) for x in node.tiles]
    if forms:
        forms[-1] = forms[-1].shifted(further)
    return names[node.stage.buffer.name] + "".join(f"[{names.linear(f)}]" for f in forms)


def _words(node: FragmentNode, names: Names, copy: str) -> Iterator[dict[str, str]]:
    """Each register put together from its elements."""
    for register in range(node.registers):
        elements = [
            names.cell(_shared(node), moved(node.source, held(node, register, slot)).cell, copy)
            for slot in range(node.product.each)
        ]
        target = f"{_cell(node, names)}[{register}]"
        yield {"target": target, "value": _word(elements, node.source.dtype)}


def _word(elements: list[str], dtype: DType) -> str:
    """Elements as one register, the first lowest."""
    if dtype is TF32:
        return f"__float_as_uint(to_tf32({elements[0]}))"
    bits = 8 * dtype.bytes
    wrap = "{}.bits" if dtype in (FLOAT16, BFLOAT16) else "static_cast<unsigned char>({})"
    parts = [f"static_cast<unsigned int>({wrap.format(e)})" for e in elements]
    return " | ".join(f"{part} << {i * bits}" if i else part for i, part in enumerate(parts))


def product_text(node: MmaNode, names: Names) -> dict[str, Any]:
    """The call of a product: its sums, and the fragments that the loops around pick."""
    target, tile = node.compute.target, node.tile
    assert target.buffer is not None
    assert isinstance(tile.product, Product)
    assert isinstance(node.a, FragmentNode)
    assert isinstance(node.b, FragmentNode)
    sums = []
    for element in range(SUMS):
        row, column = tile.product.sum_place(element)
        place = {tile.rows.name: Linear((), row), tile.columns.name: Linear((), column)}
        sums.append(names.cell(target.buffer, moved(target, place).cell))
    fragments = [_cell(node.a, names), _cell(node.b, names)]
    return {"call": f"{_product_name(tile.product)}({', '.join([*sums, *fragments])});"}
