"""docs/explanation/simulated-devices.md and its plots, written from measured figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parents[2] / "docs" / "explanation"
SIZE, EDGE = 320, 40
PAGE = """# Simulated devices, and how wrong they are

Written by `benchmarks/simulator/fidelity.py --write-docs`; do not edit by hand. Nothing on this page ran on
a GPU of ours: recordings that others made of real GPUs stand beside what the simulator says of the same
kernels.

## What is simulated

Latency, power, clock under the power cap, temperature and the energy counter of the devices `a100`,
`a100-sxm` (its chip under a cap of 400 W), `h100`, `h200`, `rtx4090`, `rtx3090` and `rtx2080ti`.
Instructions and accesses come from the compiled PTX and a run of its address arithmetic; registers and
spills from ptxas. What is not simulated: caches line by line, the
order of warps, instruction caches, clocks that a real card drops for reasons other than power, and other
tenants. A seeded residual is added to the time and energy of work, similar for similar kernels
(below); what follows leaves it out, and so does a target such as `a100@no-residual`.

The model takes a p-norm of the times that the pipes need (fp32, integer, special function, tensor,
load-store, issue, L1 fill, L2, DRAM), and at least the dependent path of a block. The load-store unit
carries most of what recordings show: a request takes as long as making its addresses (16 or 32 lanes a
clock) or its passes through the banks (128 or 64 bytes a clock), whichever is longer. A pass from global
memory returns one register a lane, so wide accesses go by half or quarter warps; on GA102 and AD102 a shared
load takes 0.75 clocks for each word of a lane. Spilled registers and lines read again share L1. A copy past
L1 (`cp.async` of 16 bytes) passes the banks once, into its tile.

Loads make a warp wait. A warp that computes with what it reads from global memory waits in each trip of its
loop, and while it waits only other warps compute; so direct reads cost most where the tile of a thread is
large and few warps share an SM. Loads of a tile wait at the barrier, all warps together. Trips of a small
loop body are unrolled and wait once; a thread has 32 words of operands in flight, or 16 of a tile. A wait
takes the latency of DRAM as soon as it brings one sector that no block has read: blocks proceed in step, and
the first to ask makes all others wait.

Each constant is named where it is defined as a figure of a data sheet or a microbenchmark, a fit to
recordings, or an estimate (`ekc/devices/simulated/`).

A division of float32 that is rounded to nearest (`/` in CUDA, `div.rn.f32`) is ten machine instructions with
a branch at their end, so a warp divides one value after another, 74 cycles each. It takes these cycles and
ten issue slots.

Products on tensor cores (`mma.sync`, `wgmma`) are counted by the type of their factors, at the dense rates
of the data sheets: float16 and bfloat16 312 TFLOP/s on `a100`, 989 on `h100` and `h200`, 165, 71 and 53.8
on the GeForce cards with sums in float32; tf32 half of that, int8 twice, on GeForce four times. The best
kernels are taken to sustain 95 % of it, on Hopper 62 % by `mma.sync`, which cannot feed its tensor cores
(estimates). What `wgmma` reads of shared memory passes the banks as other reads do; its products follow
each other without waiting, and the last of a group is waited for.
Sums in float16 are twice as fast on GeForce. Products of float8 run at twice the rate of float16 on
`rtx4090`, and by `wgmma`; of `mma.sync` on Hopper ptxas makes two of float16 and conversions. A type
without a rate is refused.
Their energy is an estimate: 0.36 pJ an operation of float16 at 7 nm, twice that for tf32, half for int8.
`ldmatrix` is a shared access with the wavefronts that the PTX machine counts.

Atomics on global memory are counted by sectors like stores, and cost L2 twice their bytes, read and written
(an estimate); that those on one address wait for each other is left out.

Board power is that of the idle board, of the clock tree of busy SMs, and of events: joules that grow with
the square of the core voltage, and those of DRAM, which do not. The voltage is flat up to a knee and rises
beyond. DRAM energy counts the bytes of blocks that drift out of step, so that a panel may have left L2 when
its next user comes; the time of DRAM counts those of blocks in step ([below](#energy-of-events)).

A timed call finds in L2 what the call before it left there, as on a GPU that replays a graph: all of it
while a call touches less than the usable L2 (half of it on A100 and Hopper, whose partitions each keep
their own copy; 0.8 elsewhere), nothing much beyond twice that. `a100@cold` and the like overwrite it;
metered calls are always warm. To start a launch takes 2,400 SM cycles (1.7 us on `a100`, 0.95 us on
`rtx4090`), as kernels of others measured in graphs take (below).

## Sources

| recording | GPU | from |
|---|---|---|
| CLBlast GEMM 4096^3 with energy, 250 W cap | A100-PCIE-40GB | KernelTuner/dashboard, Apache-2.0 |
| the same kernel over clocks | A100-PCIE-40GB | KernelTuner/kernel_tuner_tutorial, Apache-2.0 |
| one FP32 FMA kernel over clocks | A100-PCIE-40GB | KernelTuner/kernel_tuner, Apache-2.0 |
| CLBlast GEMM 4096^3, complete space | RTX 3090, RTX 2080 Ti | AutoTuningAssociation/benchmark_hub (below) |
| library GEMMs by shape, with power | H200 | ai-dynamo/aiconfigurator, Apache-2.0 |
| core voltage and idle power by clock | A100-PCIE-40GB; idle power also of an H100 SXM | EnergAIzer (below) |

That of CLBlast on RTX is MIT, DOI 10.5281/zenodo.15364124; that of EnergAIzer MIT, arXiv 2604.20105.

## Split

Of each recording as many rows as stand below, one from each equal slice in order of time, are mapped to
schedules and compiled by NVRTC and ptxas. Half of their configurations, by a hash of their names, fit; the
other half scores. The RTX recordings do not hold their clock: it is fitted too, as a share of the boost clock
on the data sheet. The shipped constants are the fitted ones, rounded; "refitted" are those of this run. The
physics of the model was chosen while looking at all rows, so the held-out half guards the constants, not the
choice of terms.

Power here is that which the simulator settles at, at its own time. A constant and a table of power are
learnt from the fitting half; they and the simulator are scored on the other. How the energies of events were
found, and what they are worth at recorded times, is [below](#energy-of-events).

## Figures

```
{clblast}
```

Predicted against recorded time, the sampled rows, both axes logarithmic; the line is equality:

![a100, simulated against recorded time](simulated-a100.svg)
![rtx3090, simulated against recorded time](simulated-rtx3090.svg)
![rtx2080ti, simulated against recorded time](simulated-rtx2080ti.svg)

## At the top of the ranking

A rank correlation over a whole space says little about the kernels that a tuning run chooses between. Here
each recording is scored by what its first choices cost: all distinct kernels by estimated counts, and again
with the 60 best of the estimate compiled. *pick*: recorded time of the kernel predicted fastest, over that of
the fastest; *ten*: of the fastest among the ten predicted fastest; *tenth*: rank correlation within the tenth
with the shortest recorded times. "Unfitted half": kernels whose name has an odd hash; no constant was fitted
on them. Beside the simulator: the time of the same configuration on another card times one factor, the
elements of C that a thread owns, and a constant. The error bar counts at the card's own clock only, since the
boost clock of the data sheet is not the one that the recordings ran at.

```
{top}
```

Three compilers' habits are part of the mapping and none of the model: the recorded kernels load tiles of
scalars one by one unless the first tile is of vectors, store neighbours of an aligned tile together, and
need few integer instructions. CLBlast's vectors of eight run up to a fifth slower than those of four although
they touch memory alike; nothing here explains that, and it costs most of what is left at the top.

## What nothing explains

Real kernels lie off any formula. How far, and whether kernels that are alike lie off alike, the recordings
say in three ways. Boosted trees are trained on the settings of a recorded space and asked for the rest (5
folds; the best of three depths; rows that are one kernel under two names count once and tell how well a
measurement repeats; "neighbours": correlation of what is left of two kernels that differ in one setting).
The simulator's own error, without its residual, is compared with the distance of two kernels in traits: what
their warps do and in which proportions, in octaves (`ekc/devices/simulated/residual.py`). Last, the same
trees are asked what they leave of the recorded space, of the simulated one, and of that with residuals of
several sizes: trees leave some of a formula too, and what they leave alone is no measure of chance.

```
{residual}
```

So nearly all of what the simulator gets wrong is shared by kernels alike. A simulated device therefore has
on the time of a launch, once started, a factor that is a path of a Gaussian process over traits, another
path for each device, and one of the kernel's own: the sizes are those "shipped". What recordings have and
simulated devices do not is the tail: some kernels are far off what their neighbours say, quicker or slower,
so that root mean squares tell a larger own part than medians do. Spills of another compiler would do that,
and ours are counted separately. The convolutions leave trees more than the products do; none of ours is
mapped to them, so how much of that is their own is not known.

Power: that of the A100 repeats no better than trees predict it. The clock at which it ran under its cap does
(0.985 between two names of one kernel), and is used [below](#energy-of-events). The power of the hotspot
stencil, at a fixed clock, leaves trees under 1 %, so a kernel's own part is as small as that of time. The
size of the shared part, 3 %, remains an estimate.

## Energy of events

Power by NVML is a poor meter here, but the A100 had another: under a cap of 250 W it ran each kernel at the
clock at which the board draws 250 W. Two names of one kernel ran 4 MHz from each other, all kernels over a
range of 240 MHz. The cap, less the idle and clock power of the model at that clock, times the recorded time
is the energy of the kernel's events. Rows below 1400 MHz fit; beyond, the clock is the highest that can be
set. Folds are by a hash of the kernel's name.

Each energy got a published figure, and may leave it by a factor of two. On-chip memory, L2 and DRAM have
measurements of an A100 (Delestrac et al., ASAP 2024; Antepara et al., SC 2025; as others quote them), made at
its boost clock and divided here by 1.65, the square of the relative voltage there. Arithmetic has figures for
7 nm of Jouppi et al. (ISCA 2021) and operands of Keckler et al. (IEEE Micro 2011); the rest of an instruction
is Dally's figure for 45 nm (Hot Chips 2023), scaled. `ekc/devices/simulated/power.py` names the source of
each. One kind of product cannot separate all kinds of event: those of one group share a factor, and kinds
that it does not have take the factor of their group. "Alone" is the fit in which each has its own: there
shared requests and wavefronts take from each other, and so do the bytes and sectors of global loads.

```
{energy}
```

In words:

- Instructions are at their lower bound: the recording wants them cheaper than half the literature, or an
  idle board that draws less. All kernels do the same multiply-adds, so the energy of these is only known
  together with the power that does not depend on the kernel. The FMA kernel agrees: it drew less than it
  would with random data, by the factor "activity" on the energy of its events.
- SRAM accesses are at their lower bound too. Passes through the banks that collide seem to cost less than a
  pass that reads half of the banks; the rows under the cap want more for them than those over clocks.
- DRAM takes 1.1 times what Delestrac et al. measured and 0.7 times what Antepara et al. did, if blocks drift
  out of step after their first wave. With the bytes of blocks in step it runs into its upper bound, and
  scores 0.70 instead of 0.77 for the clock under the cap, 0.85 as before for equals, and a power error of
  5.5 % instead of 2.7 %: small tiles draw more than those bytes explain. The times of the RTX 3090 fit blocks
  in step a little better (rank 0.94, else 0.93, of 900 rows, with an earlier model of waits), those of the
  RTX 2080 Ti and the A100 both alike, so the time of DRAM is that of blocks in step. Both cannot be right. A
  counter of DRAM bytes would settle it; no recording of these kernels has one.
- The terms were chosen while looking at both recordings, so the sweep over clocks guards the energies, not
  the choice of terms; and first fits had been seen when the bounds were written.
- Clocks at simulated time are those of times that are some percent wrong: where both operands are staged
  their rank is 0.91, elsewhere 0.41. The bar of 0.55 for all is missed by 0.025.
- Idle power: both A100 recordings are of a board of 40 GB, PCIe and 250 W, and yet one drew 42 W at 210 MHz
  with the FMA kernel and the other 44 W idle. The rise of idle power with the voltage fits the leakage that
  the FMA kernel shows, at 45 C; what is left is 6 W of constant power, a difference of the boards or of their
  temperatures. The simulated A100 is between them, 3 to 8 % below the idle curve. "Idle" is compared at 45 C;
  what it meant, and at which temperature it was recorded, is not documented. The H100's point at 345 MHz
  (117 W, its neighbour has 73) is left out; the others are met within 6 %.
- H100 and H200 take the A100's energies by a factor for their process, 0.72 (estimate), and a voltage
  fitted to the H100's idle power. The GeForce cards take them by their process, and the shape of the A100's
  voltage, the RTX 3090 that of an RTX A4000. No recording judges that.
- The copy on the simulated h200 is compared with recorded products that move as many bytes a second; the
  interval is that of their quartiles. Their power has two peaks, near 370 and 630 W, so no bar judges it.

## Tensor cores on the H200

The recording has library kernels of bfloat16 (`wgmma`, on tiles that TMA brings). Ours are the fastest that
the search finds on the simulated `h200`, at the clock that its power cap allows: products of a warpgroup
(`wgmma`) on tiles that asynchronous copies bring, or of a warp (`mma`). No constant was fitted to these rows
here.

```
{h200}
```

## How wrong, in words

- What the mapping leaves out: the kernels recorded were compiled by other compilers, from OpenCL or CUDA
  text with sizes known only at run time; ours are ekc's text with CLBlast's copies written in.
- Direct reads: kernels that stage neither operand come out too fast by a quarter on the RTX 3090 where a
  thread owns 128 elements and two warps share a scheduler; the error grows by 5 % an octave of the distance
  between lanes there, and not on the other two cards.
- Kernels that spill come out between a fifth and 1.7 times the recorded time, about right in the median:
  spills are counted as if they all lay in the hottest loop. Those predicted far too fast read global memory
  in that loop too. The sampled rest is within 0.25 and 1.76 times, nine of ten rows within 0.66 and 1.25.
- Under the cap a constant predicts the A100's power about as well as the simulator: most rows sit at the
  cap. Rank correlation of power there is near 0, in the simulator and in the table alike.
- What the recorded FMA kernel multiplied is not known. With the energies for random data it comes out too
  high; its figure uses one factor, fitted to all clocks but the one that is predicted ("activity").
- Tensor cores: no recording has kernels of ours. Those of others that can be compiled and counted come out
  right within 6 to 16 % in the median (below). What a
  library's kernels say is how far behind they are: by a fifth where a product is large, by more where it
  has too few tiles for the device. Ours wait for each tile's products before the next and bring tiles
  by instructions of all threads; the library's do neither (TMA, clusters that share tiles). What L2 gives on
  these chips is an estimate of what somebody's published kernel must have drawn (`specs.py`).
- Power on the H200: of kernels shorter than 100 us it was not recorded but diluted. At 600 to 700 TFLOP/s
  the median is 233 W below 15 us, 619 W from 30 to 50 us and 691 W beyond 100 us, as if the board had
  waited between launches; only rows from 100 us on are compared with. Of these, three in four are at the
  cap, where a table by TFLOP/s and a constant predict as well as the simulator.
- Other shapes, fp16, H100 and RTX 4090 rest on the kernels below; int8 on data sheets alone.

## Kernels of others

`benchmarks/simulator/foreign.py` compiles, counts and times kernels of emmy-ml 0.3.22 (Apache-2.0), measured
on an A100 of 400 W, an H100 and an RTX 4090, at the boost clock. Half of the groups of equal kernels fitted
the cycles of a launch, what L2 keeps from call to call, and the cost of conversions from float8; the other
half scores. Which mechanisms to add was decided while looking at all rows, so the held-out half guards the
constants alone. Rows of 10 us and longer:

| card | scored half | all | Spearman (scored, all) | roofline (scored) |
|---|---|---|---|---|
| A100 | 8.1 % (6.7 to 9.0) | 9.1 % | 0.995, 0.987 | 30.5 % |
| RTX 4090 | 10.1 % (6.7 to 17.3) | 9.2 % | 0.983, 0.989 | 30.8 % |
| H100 without TMA | 10.4 % (7.7 to 23.7) | 11.3 % | 0.929, 0.921 | 55.5 % |
| H100, cp.async printed in TMA's place | 13.5 % (11.8 to 21.6) | 20.0 % | 0.966, 0.976 | 52.7 % |

Of pairs of one group that differ by 20 % or more 45 of 50 are ordered right (80 to 98 %), and taking the
simulated fastest of a group costs 4.5 % (2.3 to 7.3) on average; a random one costs 221 %. Rows with cp.async
in TMA's place are not among these: 33 of 40 pairs, and 14.7 % for the pick.

Constants fitted to CLBlast's kernels, with loads that wait, came after those fitted here; with these alone
the scored halves were at 5.7, 9.3, 11.8 and 15.5 %.

Until divisions counted as several instructions, the H100 without TMA was at 22.6 % on the scored half and
19.8 % on all rows, and its kernels of `wgmma` at a median of 0.68 of the measured time, now 0.91. Most of
these compute attention and end with 32 to 128 rounded divisions a thread, on one or two blocks an SM. The
mechanism was found on rows of the fitted half, and which of two forms it takes was chosen there; its cycles
come from microbenchmarks of a reciprocal on older GPUs. After the scored half had been printed once (9.7 %,
with 78.5 cycles), a wrong count of instructions in them was corrected. On the A100 and the RTX 4090 the
mechanism leaves all these figures within 0.1 %, but for the RTX 4090's reductions (14.2 to 13.8 %).

The fastest float32 kernels that our search finds (256 trials, seed 0, targets `a100-sxm` and `rtx4090`, at
their fixed clocks of 1410 and 2235 MHz), beside the fastest measured of that set:

| matrix product | a100-sxm | measured | ratio | rtx4090 | measured | ratio |
|---|---|---|---|---|---|---|
| 1024 cubed | 125.5 us | 135.3 us | 0.93 | 41.6 us | 55.0 us | 0.76 |
| 2048 cubed | 1.002 ms | 1.032 ms | 0.97 | 272 us | 359 us | 0.76 |
| 4096 cubed | 8.01 ms | 7.97 ms | 1.00 | 2.23 ms | 2.73 ms | 0.82 |

The measured kernels themselves take 1.06 to 1.09 times their measured time on the simulated A100, and 1.07 to
1.26 times on the RTX 4090, at the boost clock. So the model is not too fast for these. But ours come out at
84 % of the multiply-add rate at their clock on the simulated RTX 4090, where the best measured kernel of that
set reaches 61 % of the rate at boost: whether ours would be that much faster on a real one, no recording
tells, and the ceiling on Ada may be too high.

What stays wrong: float8 by `mma.sync` on the H100 (half of the measured time in kernels that were measured
with TMA, whose tiles have no padding against bank conflicts), and single sectors of 32 bytes at large strides
(0.65 of the measured time on the RTX 4090, 1.3 times on the others).
"""


BLOCKS = {
    "clblast": "## Figures",
    "top": "## At the top of the ranking",
    "residual": "## What nothing explains",
    "energy": "## Energy of events",
    "h200": "## Tensor cores on the H200",
}
"""Part -> heading of its block of figures."""


def write(
    texts: Mapping[str, str],
    plots: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
    folder: Path = FOLDER,
) -> None:
    """The page and one plot for each device. A block that was not measured stays as the page has it."""
    file = folder / "simulated-devices.md"
    blocks = {
        part: texts[part] if part in texts else _find_block(file, heading) for part, heading in BLOCKS.items()
    }
    for device, (predicted, recorded) in plots.items():
        name = f"simulated-{device}.svg"
        (folder / name).write_text(plot_scatter(f"{device} (simulated)", predicted, recorded))
    file.write_text(PAGE.format(**blocks))


def _find_block(file: Path, heading: str) -> str:
    """The figures under a heading of the page as it is; a dash where it has none."""
    page = file.read_text() if file.is_file() else ""
    return page.partition(heading + "\n")[2].partition("```\n")[2].partition("\n```")[0] or "-"


def plot_scatter(title: str, predicted: NDArray[np.float64], recorded: NDArray[np.float64]) -> str:
    """An SVG of seconds against seconds, in milliseconds, both axes logarithmic."""
    low, high = (
        float(round_(np.concatenate([predicted, recorded])))
        for round_ in (lambda v: np.log10(v.min() * 1e3) - 0.05, lambda v: np.log10(v.max() * 1e3) + 0.05)
    )

    def place(seconds: Any) -> Any:
        return (np.log10(np.asarray(seconds) * 1e3) - low) / (high - low) * (SIZE - 2 * EDGE)

    dots = "".join(
        f'<circle cx="{EDGE + x:.1f}" cy="{SIZE - EDGE - y:.1f}" r="1.6"/>'
        for x, y in zip(place(recorded), place(predicted), strict=True)
    )
    ticks = [t for t in (5, 10, 20, 50, 100, 200) if low < np.log10(t) < high]
    marks = "".join(
        f'<text x="{EDGE + place(t / 1e3):.1f}" y="{SIZE - EDGE + 14}" text-anchor="middle">{t}</text>'
        f'<text x="{EDGE - 4}" y="{SIZE - EDGE - place(t / 1e3) + 4:.1f}" text-anchor="end">{t}</text>'
        for t in ticks
    )
    near, far = EDGE, SIZE - EDGE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE}" font-family="sans-serif" '
        f'font-size="10"><rect width="{SIZE}" height="{SIZE}" fill="white"/>'
        f'<path d="M{near} {near}V{far}H{far}" fill="none" stroke="black"/>'
        f'<path d="M{near} {far}L{far} {near}" stroke="gray" stroke-dasharray="3"/>'
        f'<g fill="#1f6fb4" fill-opacity="0.5">{dots}</g>{marks}'
        f'<text x="{SIZE / 2}" y="20" text-anchor="middle">{title}</text>'
        f'<text x="{SIZE / 2}" y="{SIZE - 8}" text-anchor="middle">recorded [ms]</text>'
        f'<text x="12" y="{SIZE / 2}" transform="rotate(-90 12 {SIZE / 2})" text-anchor="middle">'
        f"predicted [ms]</text></svg>\n"
    )
