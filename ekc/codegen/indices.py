"""C text that tells a thread who it is: loops spread over blocks and threads, by hardware index."""

from __future__ import annotations

from ekc.codegen.names import CNames
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.program import THREAD_LEVELS

HARDWARE_INDICES = {"block": "blockIdx", "thread": "threadIdx"}


def format_index_lines(kernel: LaunchTree, names: CNames) -> list[str]:
    """`const int i_0 = blockIdx.y;` for every bound loop, and the linear thread number."""
    lines = []
    for level in ("block.z", "block.y", "block.x", *reversed(THREAD_LEVELS)):
        loops = kernel.find_bound_loops(level)
        where = f"{HARDWARE_INDICES[level[:-2]]}.{level[-1]}"
        for position, loop in enumerate(loops):
            below = 1
            for inner in loops[position + 1 :]:
                below *= int(inner.extent)
            lines.append(
                f"const int {names[loop.name]} = {format_digit(where, below, int(loop.extent), position == 0)};"
            )
    x, y = int(kernel.find_level_extent("thread.x")), int(kernel.find_level_extent("thread.y"))
    terms = ["threadIdx.x"]
    if y > 1:
        terms.insert(0, f"threadIdx.y * {x}")
    if int(kernel.find_level_extent("thread.z")) > 1:
        terms.insert(0, f"threadIdx.z * {x * y}")
    if any(b.scope == "shared" for b in kernel.buffers):
        lines.append(f"const int thread = {' + '.join(terms)};")
    return lines


def format_digit(index_text: str, stride: int, extent: int, is_slowest: bool) -> str:
    """One digit of an index that several loops share, `below` values of faster ones to each of it."""
    text = index_text if stride == 1 else f"{index_text} / {stride}"
    return text if is_slowest else f"{text} % {extent}"
