"""C text that tells a thread who it is: loops spread over blocks and threads, by hardware index."""

from __future__ import annotations

from ekc.codegen.names import Names
from ekc.ir.nodes import Kernel
from ekc.ir.program import THREAD_LEVELS

HARDWARE = {"block": "blockIdx", "thread": "threadIdx"}


def index_lines(kernel: Kernel, names: Names) -> list[str]:
    """`const int i_0 = blockIdx.y;` for every bound loop, and the linear thread number."""
    lines = []
    for level in ("block.z", "block.y", "block.x", *reversed(THREAD_LEVELS)):
        loops = kernel.bound(level)
        where = f"{HARDWARE[level[:-2]]}.{level[-1]}"
        for position, loop in enumerate(loops):
            below = 1
            for inner in loops[position + 1 :]:
                below *= int(inner.extent)
            lines.append(
                f"const int {names[loop.name]} = {digit(where, below, int(loop.extent), position == 0)};"
            )
    x, y = int(kernel.extent("thread.x")), int(kernel.extent("thread.y"))
    terms = ["threadIdx.x"]
    if y > 1:
        terms.insert(0, f"threadIdx.y * {x}")
    if int(kernel.extent("thread.z")) > 1:
        terms.insert(0, f"threadIdx.z * {x * y}")
    if any(b.scope == "shared" for b in kernel.buffers):
        lines.append(f"const int thread = {' + '.join(terms)};")
    return lines


def digit(where: str, below: int, extent: int, slowest: bool) -> str:
    """One digit of an index that several loops share, `below` values of faster ones to each of it."""
    text = where if below == 1 else f"{where} / {below}"
    return text if slowest else f"{text} % {extent}"
