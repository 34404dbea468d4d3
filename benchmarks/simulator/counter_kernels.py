"""The recorded convolution twice, as a schedule of ekc and as CUDA text, and what the PTX machine counts.

The design is van Werkhoven's: a block copies its input with the halo to shared memory, and a thread sums
TILE_SIZE_X by TILE_SIZE_Y outputs, at distances of BLOCK_SIZE_X and BLOCK_SIZE_Y. The recording holds the
filter in constant memory, where an fma reads it as an operand; the schedule has its weights in the text (a
body of its own axes), so neither loads them. ekc copies the halo tile by the number of the thread, the
recording row by row and column by column: that is what the CUDA text is there to part from the machine's
counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ekc
from ekc import emulator
from ekc.codegen import nvrtc
from ekc.codegen.generate import generate

ARCH = "sm_75"
WRITTEN_OUT = 4725
"""Multiply-adds of a thread up to which the recording's compiler wrote out all rows of the filter (21 outputs
of 15 x 15). Read off its memory instructions: beyond that, most kernels load their input again for each
row."""
BLOCKS = 2
"""Seeded blocks that stand for all inside the image; those on its right and lower edge have one each."""
TEXT = """
__constant__ float weights[SIDE * SIDE];
extern "C" __global__ void recorded(const float* x, float* y) {
    const int row = blockIdx.y * BY * TY, column = blockIdx.x * BX * TX, tx = threadIdx.x, ty = threadIdx.y;
    __shared__ float tile[BY * TY + SIDE - 1][BX * TX + SIDE - 1];
    #pragma unroll
    for (int i = ty; i < BY * TY + SIDE - 1; i += BY)
        #pragma unroll
        for (int j = tx; j < BX * TX + SIDE - 1; j += BX)
            tile[i][j] = __ldg(x + (row + i) * PITCH + column + j);
    __syncthreads();
    float sum[TY][TX] = {};
    #pragma unroll ROWS
    for (int r = 0; r < SIDE; ++r)
        #pragma unroll
        for (int s = 0; s < SIDE; ++s)
            #pragma unroll
            for (int i = 0; i < TY; ++i)
                #pragma unroll
                for (int j = 0; j < TX; ++j)
                    sum[i][j] += tile[ty + i * BY + r][tx + j * BX + s] * weights[r * SIDE + s];
    #pragma unroll
    for (int i = 0; i < TY; ++i)
        #pragma unroll
        for (int j = 0; j < TX; ++j) {
            const int p = row + ty + i * BY, q = column + tx + j * BX;
            if (p < HEIGHT && q < WIDTH) y[p * WIDTH + q] = sum[i][j];
        }
}
"""


@dataclass(frozen=True)
class Design:
    """The parameters of one recorded kernel."""

    block_x: int
    block_y: int
    tile_x: int
    tile_y: int
    width: int
    height: int
    half: int
    """Half the side of the filter, rounded down."""

    @property
    def side(self) -> int:
        """Side of the filter."""
        return 2 * self.half + 1

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks along x and y."""
        return -(-self.width // (self.block_x * self.tile_x)), -(-self.height // (self.block_y * self.tile_y))

    @property
    def threads(self) -> int:
        """Threads launched."""
        return self.grid[0] * self.grid[1] * self.block_x * self.block_y

    @property
    def input_shape(self) -> tuple[int, int]:
        """All that the blocks read, so that no copy needs a guard; the recording has none either."""
        return (
            self.grid[1] * self.block_y * self.tile_y + self.side - 1,
            self.grid[0] * self.block_x * self.tile_x + self.side - 1,
        )

    @property
    def written_out(self) -> bool:
        """Whether the rows of the filter are written out."""
        return self.side**2 * self.tile_x * self.tile_y <= WRITTEN_OUT


def build_schedule(design: Design) -> ekc.Schedule:
    """The design in ekc's steps; `ScheduleError` where it breaks a rule."""
    side = design.side
    # With equal weights the compiler would share products. Rows that are not written out share
    # nothing, and a weight that depends on the row would there cost a conversion and an addition.
    op = ekc.compute(
        "convolution",
        axes={"p": design.height, "q": design.width},
        reduce={"r": side, "s": side},
        inputs={"X": design.input_shape},
        body=lambda X, p, q, r, s: X[p + r, q + s] * (side * r + s + 1 if design.written_out else s + 1),
        output="Y",
    )
    cut = (
        ekc.Schedule(op)
        .split("p", (design.tile_y, design.block_y))
        .split("q", (design.tile_x, design.block_x))
        .reorder("p.0", "q.0", "p.2", "q.2", "r", "s", "p.1", "q.1")
        .bind("p.0", "block.y")
        .bind("q.0", "block.x")
        .bind("p.2", "thread.y")
        .bind("q.2", "thread.x")
        .bind("p.1", "vthread")
        .bind("q.1", "vthread")
        .cache_write("Y", "register")
        .cache_read("X", "shared")
        .unroll("s")
    )
    return cut.unroll("r") if design.written_out else cut


def format_recorded_text(design: Design) -> str:
    """The design as CUDA text, with the recording's two-dimensional copy loops."""
    values = {
        "BX": design.block_x,
        "BY": design.block_y,
        "TX": design.tile_x,
        "TY": design.tile_y,
        "SIDE": design.side,
        "WIDTH": design.width,
        "HEIGHT": design.height,
        "PITCH": design.input_shape[1],
        "ROWS": design.side if design.written_out else 1,
    }
    return "".join(f"#define {name} {value}\n" for name, value in values.items()) + TEXT


def stratify_blocks(design: Design, random: np.random.Generator) -> list[tuple[int, list[int]]]:
    """Blocks with equal counts: their number, and the indices of those that run for them."""
    columns, rows = design.grid
    inner_x = columns - (design.width % (design.block_x * design.tile_x) > 0)
    inner_y = rows - (design.height % (design.block_y * design.tile_y) > 0)
    found = []
    for x, across in (((0, inner_x), BLOCKS), ((inner_x, columns), 1)):
        for y, down in (((0, inner_y), BLOCKS), ((inner_y, rows), 1)):
            size = (x[1] - x[0]) * (y[1] - y[0])
            if size:
                count = min(across, down, size)
                chosen = random.choice(size, count, replace=False)
                numbers = [(y[0] + n // (x[1] - x[0])) * columns + x[0] + n % (x[1] - x[0]) for n in chosen]
                found.append((size, [int(n) for n in numbers]))
    return found


def counted(
    ptx: str, name: str, design: Design, args: Sequence[Any], random: np.random.Generator
) -> dict[str, float]:
    """Count in the PTX machine, scaled to the whole grid."""
    total: dict[str, float] = {}
    for size, blocks in stratify_blocks(design, random):
        report = emulator.launch(
            ptx,
            name,
            grid=design.grid,
            block=(design.block_x, design.block_y),
            args=args,
            blocks=blocks,
            sanitize=False,
        )
        for key, value in _get_counters(report.counters).items():
            total[key] = total.get(key, 0.0) + value * size / len(blocks)
    return total


def _get_counters(counters: Any) -> dict[str, int]:
    """The counters that stand beside measured ones, for the blocks that ran.

    Moves, parameters and constants are left out of the instructions: ptxas folds them into operands.
    """
    lanes, warps = counters.lane_instructions, counters.warp_instructions
    sites = list(counters.instructions.values())
    memory = [k for k in lanes if k.split(".")[-1] in ("global", "shared", "local", "generic")]
    folded = ("move", "load.param", "load.const")
    return {
        "requests": sum(s.requests for s in sites if s.kind == "load.global"),
        "read sectors": sum(s.sectors for s in sites if s.kind == "load.global"),
        "written sectors": sum(s.sectors for s in sites if s.kind == "store.global"),
        "load wavefronts": sum(s.wavefronts for s in sites if s.kind == "load.shared"),
        "store wavefronts": sum(s.wavefronts for s in sites if s.kind == "store.shared"),
        "fp32": sum(v for k, v in lanes.items() if k in ("fma.f32", "float.f32")),
        "integer": lanes.get("integer", 0) + lanes.get("compare", 0),
        "memory": sum(lanes[k] for k in memory),
        "control": lanes.get("branch", 0),
        "instructions": sum(v for k, v in warps.items() if k not in folded),
    }


def count_schedule(design: Design, seed: int) -> dict[str, float]:
    """Counts of ekc's kernel; `EkcError` where it cannot be made or run."""
    made = generate(build_schedule(design))
    return _count_run(design, made.source, made.launches[0].name, seed)


def count_text(design: Design, seed: int) -> dict[str, float]:
    """Counts of the CUDA text of the recorded design."""
    return _count_run(design, format_recorded_text(design), "recorded", seed)


def _count_run(design: Design, source: str, name: str, seed: int) -> dict[str, float]:
    x = np.zeros(design.input_shape, np.float32)
    y = np.zeros((design.height, design.width), np.float32)
    return counted(nvrtc.compile(source, ARCH).ptx, name, design, [x, y], np.random.default_rng(seed))
