"""All tunable numbers of the search: one frozen dataclass for each mechanism, and its default instance.

Each field says what it does and where its value comes from. "Chosen by us" means that no paper and no
measurement gives the value; docs/search.md has the measurements that exist. Other values make an ablation:

    SearchMethod(breeding=replace(BREEDING, generations=1))
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class BreedingSettings:
    """Population and variation of the evolutionary search (`loop/breeding.py`, `loop/generations.py`)."""

    max_population: int = 16384
    """Genomes bred at a time in a long run, at most. Chosen by us."""
    min_population: int = 512
    """Genomes bred at a time in a short run, at least. Chosen by us."""
    population_per_trial: int = 32
    """Genomes bred at a time for each trial of the run, between those bounds. A short run could not use the
    schedules that a large population finds. Chosen by us."""
    generations: int = 3
    """Generations bred between two rounds of measurements. 0: each round scores a random population.
    Chosen by us."""
    crossover_share: float = 0.4
    """Share of each new generation that is crossed and then mutated. Chosen by us."""
    mutation_share: float = 0.4
    """Share of each new generation that is mutated only; the rest is sampled at random. Chosen by us."""
    selection_pressure: float = 2
    """Exponent p of rank selection: parent rank = u^p, with u uniform from 0 to 1. 1 picks every rank
    equally often. Chosen by us."""
    immigrant_share: float = 1 / 2
    """Random genomes added to the parents at the start of a round, as a share of the population. Chosen by
    us."""
    survivor_share: float = 1 / 2
    """Best genomes of a round that are parents of the next, as a share of the population. Chosen by us."""
    elite_count: int = 12
    """Measured genomes that each round breeds from, beside the survivors. Chosen by us."""
    neighbour_share: float = 1 / 4
    """Mutated copies of the elites that are parents of a round, as a share of the population. Chosen by
    us."""


BREEDING = BreedingSettings()


@dataclass(frozen=True)
class RoundSettings:
    """Number and kind of the trials in each round (`loop/generations.py`).

    The defaults are for trials that are prepared in parallel, as schedules are compiled.
    """

    first_round_share: float = 1 / 8
    """Size of the first round, which no measurement guides, as a share of all trials. Chosen by us."""
    min_first_round: int = 4
    """Trials of the first round, at least. Chosen by us."""
    max_first_round: int = 64
    """Trials of the first round, at most. Chosen by us."""
    first_round_random_share: float = 0.5
    """Share of the first round that is sampled at random. Chosen by us."""
    round_share: float = 1 / 32
    """Size of every other round as a share of all trials. Small, so that the models have learned from nearly
    all earlier trials. Chosen by us."""
    min_trials: int = 4
    """Trials of every other round, at least. Chosen by us."""
    max_trials: int = 32
    """Trials of every other round, at most. Chosen by us."""
    random_share: float = 0.15
    """Share of the trials after the first round that is sampled at random, so that the models learn from more
    than their own favourites. Chosen by us."""
    closing_share: float = 1 / 16
    """Share of all trials, the last ones, that looks for schedules as good as the best that take fewer issue
    slots. Chosen by us."""
    shortlist_per_trial: int = 32
    """Best genomes by acquisition that a batch is picked from, for each trial of the batch. Chosen by us."""


PARALLEL_ROUNDS = RoundSettings()
SEQUENTIAL_ROUNDS = RoundSettings(
    round_share=1 / 100, min_trials=1, max_trials=32, random_share=0.0, closing_share=0.0
)
"""For a table of figures, which answers at once: each trial can be picked with knowledge of all earlier ones.
No random trials: the Gaussian process says itself where it is unsure. Chosen by us."""


@dataclass(frozen=True)
class AcquisitionSettings:
    """Scores of genomes for breeding and picking (`loop/task.py`)."""

    initial_log_best: float = 20.0
    """Natural log of the incumbent objective before anything was measured: any schedule improves on it, so
    the least expected figure scores best. Chosen by us."""
    min_log_feasibility: float = math.log(0.5)
    """Closing rounds: log of the probability of no register spill, below which no schedule counts as tied
    with the best. Chosen by us."""
    tie_priority: float = 1000.0
    """Closing rounds: subtracted from the score of schedules that are expected to tie with the best. More
    than logs of figures and of issue slots can differ. Chosen by us."""


ACQUISITION = AcquisitionSettings()


@dataclass(frozen=True)
class SelectionSettings:
    """Comparison of measured schedules (`data/selection.py`, `loop/incumbent.py`)."""

    tie_tolerance: float = 0.01
    """Relative latency difference above which two schedules are never tied, however uncertain the timings.
    Chosen by us."""
    prefetch_discount: float = 1 / 300
    """Share of its issue slots that a schedule is credited for each tile it prefetches: it can wait longer
    for memory. With three tiles 1 %, the accuracy of the counts. Chosen by us."""
    max_discounted_stages: float = 3.0
    """Prefetched tiles that are credited, at most. Chosen by us."""
    infeasibility_exponent: float = 2
    """Exponent p of the penalty on schedules slower than `max_slowdown` allows: the objective is multiplied
    by (latency / allowed latency)^p. Chosen by us."""


SELECTION = SelectionSettings()


@dataclass(frozen=True)
class MeasuringSettings:
    """Length and frequency of energy measurements (`loop/measure.py`, `loop/task.py`)."""

    label_window_s: float = 1.0
    """Metering window in seconds of a figure that the energy model learns from. Ten or more updates of the
    energy counter, which come every 20 to 100 ms."""
    final_window_s: float = 5.0
    """Metering window in seconds of a figure that is reported. Fifty or more updates of the counter."""
    meterings_per_run: int = 16
    """Number of times that a run stops timing in order to meter. Chosen by us."""
    min_trials_per_metering: int = 4
    """Trials between two such times, at least. Chosen by us."""
    max_trials_per_metering: int = 64
    """Trials between two such times, at most. Chosen by us."""
    max_clocks_tried: int = 8
    """Clocks at which the best schedule is measured with clocks="search". Chosen by us."""


MEASURING = MeasuringSettings()


@dataclass(frozen=True)
class FinalsSettings:
    """The last comparison of a run (`loop/finals.py`)."""

    finalist_count: int = 4
    """Schedules measured again because they are best by the objective. Chosen by us."""
    fastest_count: int = 2
    """Schedules measured again because they are fastest. Chosen by us."""
    repeats: int = 3
    """Measurements of each finalist: A B C, C B A, A B C. Chosen by us."""
    max_metering_gap_s: float = 60.0
    """Seconds between two meterings above which they do not count as taken in turn. One takes about 7 s."""


FINALS = FinalsSettings()


@dataclass(frozen=True)
class StoppingSettings:
    """The stopping rule of `effort` (`loop/stopping.py`)."""

    initial_credit: float = 0.1
    """Relative improvement that counts as predicted and as achieved before the first round. Chosen by us."""
    compile_wait_s: float = 0.5
    """Seconds that the board idles for one compile. A round figure and no measured one, so that the same seed
    stops at the same trial everywhere."""


STOPPING = StoppingSettings()


@dataclass(frozen=True)
class ForecastSettings:
    """The forecast of a run's duration (`forecast.py`)."""

    probe_count: int = 4
    """Schedules compiled to estimate the seconds of one compile. Chosen by us."""


FORECAST = ForecastSettings()


@dataclass(frozen=True)
class ReplaySettings:
    """The search on tables and recordings (`replay/`)."""

    std_scale: float = 1.5
    """Factor on the standard deviation of the Gaussian process. It learns from rows that the search chose, so
    its own estimate is too small. Chosen by us."""
    clip_quantile: float = 0.8
    """Figures above this quantile of those measured are learned as if they were at it: the process is to
    tell good from better, not bad from worse. Chosen by us."""
    neighbour_count: int = 8
    """Recorded schedules of most similar features that a mutation may move to. Chosen by us."""
    far_move_share: float = 0.5
    """Share of mutations to any row or value instead of a nearby one. Chosen by us."""
    second_move_share: float = 0.4
    """Share of mutations that change two columns of a table instead of one. Chosen by us."""


REPLAY = ReplaySettings()


@dataclass(frozen=True)
class TilingSettings:
    """Tile sizes and other decisions of the structures (`sketches/`). Larger values make larger spaces."""

    max_vthreads: int = 8
    """Virtual threads along an axis, at most; a quarter of it where more than two spatial axes are tiled.
    Chosen by us."""
    max_threads: int = 256
    """Threads along an axis, at most. Chosen by us."""
    max_tile: int = 16
    """Elements of a thread along an axis, at most; half of it where more than two spatial axes are tiled.
    Chosen by us."""
    max_reduce: int = 64
    """Steps of the inner loop of a reduction, at most. Chosen by us."""
    column_lanes: int = 4
    """Lanes of a warp along the columns of a matrix whose rows are summed. With 16 bytes each they read two
    sectors of 32 bytes, a burst of DRAM."""
    max_table_rows: int = 4096
    """Rows in the table of one decision, at most; the rows with least padding stay. Chosen by us."""
    max_padding_ratio: float = 1.34
    """Factor by which the tiles may round an axis up, at most. A tiny axis may be rounded up to its next legal
    size. Chosen by us."""
    movable_factors: tuple[int, ...] = (2, 3, 5, 7)
    """Factors that a mutation may move between two levels of a tile. Chosen by us."""
    max_short_terms: int = 8
    """Terms of a sum up to which a group counts as short, so that a block computes several groups. A sector of
    32 bytes holds 8 terms of 4 bytes, or 16 of 2 bytes."""
    max_staging_plans: int = 32
    """Combinations of staging for the tensors of one compute that become structures, at most. Chosen by us."""
    max_staged_row_bytes: int = 36 * 1024
    """Bytes of a row that may go through shared memory in a normalization: with `max_padding_ratio` 48 KiB,
    the shared memory that every block can have."""
    pads: tuple[int, ...] = (0, 1, 2, 4, 8)
    """Elements added to each row of a tile in shared memory, against bank conflicts. Chosen by us."""
    buffer_counts: tuple[int, ...] = (1, 2)
    """Copies of a tile in shared memory without `cp.async`: single or double buffering."""
    pipeline_depths: tuple[int, ...] = (2, 3, 4, 6)
    """Copies of a tile in shared memory with `cp.async`. Chosen by us."""
    unroll_factors: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Factors by which the inner loop of a reduction is unrolled. Chosen by us."""
    row_warps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Warps that reduce one row of a normalization. 32 are the most that a block can have."""


TILING = TilingSettings()


@dataclass(frozen=True)
class TensorCoreSettings:
    """Tile sizes of structures for tensor cores (`sketches/tensor_cores.py`)."""

    warps: tuple[int, ...] = (1, 2, 4, 8)
    """Warps along the rows or the columns, with `mma`. Chosen by us."""
    tiles: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    """Instructions of a warp along the rows or the columns, with `mma`. Chosen by us."""
    depths: tuple[int, ...] = (1, 2, 4, 8)
    """Instructions along the depth of a shared tile, with `mma`. Chosen by us."""
    raster_sizes: tuple[int, ...] = (1, 2, 4, 8)
    """Consecutive blocks along the rows with the same columns, so that resident blocks share rows and columns
    in L2. Chosen by us."""
    warpgroups: tuple[int, ...] = (1, 2, 3, 4)
    """Warpgroups along the rows, with `wgmma`. Chosen by us."""
    warpgroup_tiles: tuple[int, ...] = (1, 2)
    """Instructions of a warpgroup along the rows, with `wgmma`. Chosen by us."""
    warpgroup_depths: tuple[int, ...] = (2, 4, 8)
    """Instructions along the depth of a shared tile, with `wgmma`. Chosen by us."""


TENSOR_CORES = TensorCoreSettings()


@dataclass(frozen=True)
class SplitKSettings:
    """Sums cut over blocks (`sketches/split_k.py`)."""

    tile_outputs: int = 64 * 64
    """Outputs that one multiprocessor computes at a time where outputs share their reads. Chosen by us."""
    warp_outputs: int = 64
    """Outputs that one multiprocessor computes at a time where each output reads its own data: the warps that
    fit. Chosen by us."""
    min_sum_terms: int = 2048
    """Terms that a sum must have to be cut. A shorter one is not worth a second launch. Chosen by us."""
    min_part_terms: int = 128
    """Terms that each part must have. Chosen by us."""
    part_alignment: int = 32
    """Terms of which the length of a part should be a multiple: whole warps, whole `mma` instructions."""
    fill_divisors: tuple[int, ...] = (1, 4)
    """Numbers of parts that are tried: as many as fill the device, divided by each of these. Chosen by us."""


SPLIT_K = SplitKSettings()


@dataclass(frozen=True)
class SpaceSettings:
    """Work on populations (`space/`). None but the repair settings changes what a search finds."""

    partition_count: int = 2
    """Partitions of a space: one for this process and one for the background worker."""
    chunk_rows: int = 8192
    """Genomes analysed at once, so that temporary arrays stay in cache. Chosen by us."""
    trace_sample_rows: int = 97
    """Random genomes with which the rules and the analysis are recorded. Chosen by us."""
    repair_rounds: int = 12
    """Attempts to repair a genome that breaks a rule. Chosen by us."""
    unrepaired_share: float = 0.01
    """Share of a population below which the genomes still illegal are dropped, not repaired. Chosen by us."""
    max_halvings: int = 6
    """Halvings of tile levels in one attempt of repair, at most. Chosen by us."""


SPACE = SpaceSettings()
