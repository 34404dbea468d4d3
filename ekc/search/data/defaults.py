"""All tunable numbers of the search: one frozen dataclass for each mechanism, and its default instance.

Each field says what it does and where its value comes from. A value without a source was chosen by us: no
paper and no measurement gives it; docs/explanation/search.md has the measurements that exist. Other values
make an ablation:

    SearchMethod(breeding=replace(BREEDING, generations=1))
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class BreedingSettings:
    """Population and variation of the evolutionary search (`loop/breeding.py`, `loop/rounds.py`)."""

    max_population: int = 2048
    """Genomes bred at a time, at most. With 8,192, runs of 256 trials found nothing better in 1.5 times the
    CPU seconds (docs/explanation/search.md)."""
    min_population: int = 512
    """Genomes bred at a time in a short run, at least."""
    population_per_trial: int = 32
    """Genomes bred at a time for each trial of the run, between those bounds. A short run could not use the
    schedules that a large population finds."""
    generations: int = 3
    """Generations bred between rounds of measurements. 0: rounds score random genomes."""
    crossover_share: float = 0.4
    """Share of each new generation that is crossed and then mutated."""
    mutation_share: float = 0.4
    """Share of each new generation that is mutated only; the rest is sampled at random."""
    selection_pressure: float = 2
    """Exponent p of rank selection: parent rank = u^p, u uniform in 0 to 1; 1: all alike."""
    immigrant_share: float = 1 / 2
    """Random genomes added to a round's first parents, as a share of the population."""
    survivor_share: float = 1 / 2
    """Best genomes of a round that are parents of the next, as a share of the population."""
    elite_count: int = 12
    """Measured genomes that each round breeds from, beside the survivors."""
    neighbour_share: float = 1 / 4
    """Mutated copies of the elites among a round's parents, as a share of the population."""


BREEDING = BreedingSettings()


@dataclass(frozen=True)
class RoundSettings:
    """Number and kind of each round's trials (`loop/rounds.py`), by default for trials that are prepared
    in parallel, as schedules are compiled."""

    first_round_share: float = 1 / 8
    """Size of the first round, which no measurement guides, as a share of all trials."""
    min_first_round: int = 4
    """Trials of the first round, at least."""
    max_first_round: int = 64
    """Trials of the first round, at most."""
    first_round_random_share: float = 0.5
    """Share of the first round that is sampled at random."""
    round_share: float = 1 / 32
    """Size of every other round as a share of all trials. Small, so that the models have learned from nearly
    all earlier trials."""
    min_trials: int = 4
    """Trials of every other round, at least."""
    max_trials: int = 32
    """Trials of every other round, at most."""
    random_share: float = 0.15
    """Share of the trials after the first round that is sampled at random, so that the models learn from more
    than their own favourites."""
    shortlist_per_trial: int = 32
    """Best genomes by acquisition that a batch is picked from, for each trial of the batch."""


PARALLEL_ROUNDS = RoundSettings()
SEQUENTIAL_ROUNDS = RoundSettings(round_share=1 / 100, min_trials=1, max_trials=32, random_share=0.0)
"""For a table of figures, which answers at once: each trial can be picked with knowledge of all earlier ones.
No random trials: the Gaussian process says itself where it is unsure."""
PEER_ROUNDS = RoundSettings(first_round_random_share=0.25, random_share=0.0)
"""For layers of a model that learn from each other. With 12 trials a layer, 100 layers of seeds 100 to 102,
the fastest kernel took 0.973 of the time (0.950 to 0.996), and that of least energy 0.993 of the energy
(0.976 to 1.011)."""


@dataclass(frozen=True)
class AcquisitionSettings:
    """Scores of genomes for breeding and picking (`cost_model/acquisition.py`)."""

    initial_log_best: float = 20.0
    """Natural log of the incumbent objective before anything was measured: any schedule improves on it, so
    the least expected figure scores best."""
    infeasibility_exponent: float = 2
    """Exponent p of the penalty on schedules slower than `max_slowdown` allows: the objective is multiplied
    by (latency / allowed latency)^p."""


ACQUISITION = AcquisitionSettings()


@dataclass(frozen=True)
class MeasuringSettings:
    """Length and frequency of energy measurements (`loop/measure.py`, `loop/task.py`)."""

    label_window_s: float = 1.0
    """Metering window in seconds of a figure that the energy model learns from. Ten or more updates of the
    energy counter, which come every 20 to 100 ms."""
    final_window_s: float = 5.0
    """Metering window in seconds of a figure that is reported. Fifty or more updates of the counter."""
    meterings_per_run: int = 16
    """Number of times that a run stops timing in order to meter."""
    min_trials_per_metering: int = 4
    """Trials between two such times, at least."""
    max_trials_per_metering: int = 64
    """Trials between two such times, at most."""


MEASURING = MeasuringSettings()


@dataclass(frozen=True)
class FinalsSettings:
    """The last comparison of a run (`loop/finals.py`)."""

    finalist_count: int = 4
    """Schedules measured again because they are best by the objective."""
    fastest_count: int = 2
    """Schedules measured again because they are fastest."""
    repeats: int = 3
    """Measurements of each finalist: A B C, C B A, A B C."""
    max_metering_gap_s: float = 60.0
    """Seconds between two meterings above which they do not count as taken in turn. One takes about 7 s."""


FINALS = FinalsSettings()


@dataclass(frozen=True)
class StoppingSettings:
    """The stopping rule of `effort` (`loop/stopping.py`)."""

    initial_credit: float = 0.1
    """Relative improvement that counts as predicted and as achieved before the first round."""
    compile_wait_s: float = 0.5
    """Seconds that the board idles for one compile. A round figure and no measured one, so that the same seed
    stops at the same trial everywhere."""


STOPPING = StoppingSettings()


@dataclass(frozen=True)
class SchedulerSettings:
    """The turns of the layers of a model (`whole_model/scheduler.py`)."""

    round_share: float = 1 / 16
    """Size of a round after the first, as a share of the trials of the layer so far: the mean that
    `round_share` has over a run that ends there."""

    population_factor: int = 6
    """A layer breeds as many genomes as a run of so many times its mean share of the trials: it may get more
    than the mean. With 2,048 genomes in place of 768, six runs with 12 trials of each layer in the mean took
    1.016 in place of 1.026 times the energy of equal shares with 24."""
    decay_trials: float = 8.0
    """Trials after the warm-up at which a round is expected to improve a layer half as much as right after
    it: docs/explanation/search.md has the improvements of 71 searches of layers."""


SCHEDULER = SchedulerSettings()


@dataclass(frozen=True)
class ReplaySettings:
    """The search on tables and recordings (`replay/`)."""

    std_scale: float = 1.5
    """Factor on the standard deviation of the Gaussian process. It learns from rows that the search chose, so
    its own estimate is too small."""
    clip_quantile: float = 0.8
    """Figures above this quantile of those measured are learned as if they were at it: the process is to tell
    good from better, not bad from worse."""
    neighbour_count: int = 8
    """Recorded schedules of most similar features that a mutation may move to."""
    far_move_share: float = 0.5
    """Share of mutations to any row or value instead of a nearby one."""
    second_move_share: float = 0.4
    """Share of mutations that change two columns of a table instead of one."""


REPLAY = ReplaySettings()


@dataclass(frozen=True)
class TilingSettings:
    """Tile sizes and other decisions of the structures (`sketches/`). Larger values make larger spaces."""

    max_vthreads: int = 8
    """Virtual threads along an axis, at most; a quarter beyond two tiled spatial axes."""
    max_threads: int = 256
    """Threads along an axis, at most."""
    max_tile: int = 16
    """Elements of a thread along an axis, at most; half beyond two tiled spatial axes."""
    max_reduce: int = 64
    """Steps of the inner loop of a reduction, at most."""
    column_lanes: int = 4
    """Lanes of a warp along the columns of a matrix whose rows are summed. With 16 bytes each they read two
    sectors of 32 bytes, a burst of DRAM."""
    max_table_rows: int = 4096
    """Rows in the table of one decision, at most; the rows with least padding stay."""
    max_padding_ratio: float = 1.34
    """Factor by which tiles may round an axis up, at most, but for a tiny axis's next size."""
    movable_factors: tuple[int, ...] = (2, 3, 5, 7)
    """Factors that a mutation may move between two levels of a tile."""
    max_short_terms: int = 8
    """Terms of a sum up to which a group counts as short, so that a block computes several groups. A sector
    of 32 bytes holds 8 terms of 4 bytes, or 16 of 2 bytes."""
    max_staging_plans: int = 32
    """Combinations of staging for one compute's tensors that become structures, at most."""
    max_staged_row_bytes: int = 36 * 1024
    """Bytes of a row that may go through shared memory in a normalization: with `max_padding_ratio` 48 KiB,
    the shared memory that every block can have."""
    pads: tuple[int, ...] = (0, 1, 2, 4, 8)
    """Elements added to each row of a tile in shared memory, against bank conflicts."""
    buffer_counts: tuple[int, ...] = (1, 2)
    """Copies of a tile in shared memory without `cp.async`: single or double buffering."""
    pipeline_depths: tuple[int, ...] = (2, 3, 4, 6)
    """Copies of a tile in shared memory with `cp.async`."""
    unroll_factors: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Factors by which the inner loop of a reduction is unrolled."""
    row_warps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Warps that reduce one row of a normalization. 32 are the most that a block can have."""


TILING = TilingSettings()


@dataclass(frozen=True)
class TensorCoreSettings:
    """Tile sizes of structures for tensor cores (`sketches/tensor_cores.py`)."""

    warps: tuple[int, ...] = (1, 2, 4, 8)
    """Warps along the rows or the columns, with `mma`."""
    tiles: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    """Instructions of a warp along the rows or the columns, with `mma`."""
    depths: tuple[int, ...] = (1, 2, 4, 8)
    """Instructions along the depth of a shared tile, with `mma`."""
    raster_sizes: tuple[int, ...] = (1, 2, 4, 8)
    """Consecutive blocks along the rows with the same columns, which share both in L2."""
    warpgroups: tuple[int, ...] = (1, 2, 3, 4)
    """Warpgroups along the rows, with `wgmma`."""
    warpgroup_tiles: tuple[int, ...] = (1, 2)
    """Instructions of a warpgroup along the rows, with `wgmma`."""
    warpgroup_depths: tuple[int, ...] = (2, 4, 8)
    """Instructions along the depth of a shared tile, with `wgmma`."""


TENSOR_CORES = TensorCoreSettings()


@dataclass(frozen=True)
class SplitKSettings:
    """Sums cut over blocks (`sketches/rewritten_operators.py`)."""

    tile_outputs: int = 64 * 64
    """Outputs that one multiprocessor computes at a time where outputs share their reads."""
    warp_outputs: int = 64
    """Outputs that one SM computes at a time if each reads its own data: the warps that fit."""
    min_sum_terms: int = 2048
    """Terms that a sum must have to be cut. A shorter one is not worth a second launch."""
    min_part_terms: int = 128
    """Terms that each part must have."""
    part_alignment: int = 32
    """Terms of which the length of a part should be a multiple: whole warps, whole `mma` instructions."""
    fill_divisors: tuple[int, ...] = (1, 4)
    """Numbers of parts that are tried: as many as fill the device, divided by each of these."""


SPLIT_K = SplitKSettings()


@dataclass(frozen=True)
class SpaceSettings:
    """Work on populations (`space/`). The first two change only the speed of a search."""

    chunk_rows: int = 8192
    """Genomes analysed at once, so that temporary arrays stay in cache."""
    trace_sample_rows: int = 97
    """Random genomes with which the rules and the analysis are recorded."""
    repair_rounds: int = 12
    """Attempts to repair a genome that breaks a rule."""
    unrepaired_share: float = 0.01
    """Share of a population below which the genomes still illegal are dropped, not repaired."""
    max_halvings: int = 6
    """Halvings of tile levels in one attempt of repair, at most."""
    father_share: float = 0.5
    """Share that a child takes from its father, of the decisions that both parents have."""
    second_change_share: float = 0.4
    """Share of mutants in which two decisions change instead of one."""
    near_share: float = 0.5
    """Share of changed decisions that move by one step; the others are sampled again."""
    structure_rate: float = 0.1
    """Share of mutants whose structure is sampled again."""


SPACE = SpaceSettings()


@dataclass(frozen=True)
class EvolutionSettings:
    """Edits of the steps of structures (`space/step_edits.py`, `space/evolving_space.py`)."""

    edit_shares: tuple[float, ...] = (0.5, 0.1, 0.15, 0.1, 0.15)
    """Shares of edits that insert, delete, exchange, move and cross."""
    drawn_edits: int = 24
    """Edits drawn before each round, at most."""
    tried_edits: int = 8
    """New structures that are tried before each round, at most."""
    kept_edits: int = 2
    """Edited structures that join the population before each round, at most."""
    genomes_per_edit: int = 24
    """Genomes that an edited structure is judged by."""
    parent_count: int = 24
    """Best genomes whose structures are edited."""


EVOLUTION = EvolutionSettings()


@dataclass(frozen=True)
class FeatureCacheSettings:
    """The cache of analysed genomes (`cost_model/features.py`). It does not change what a search finds."""

    max_genomes: int = 1 << 16
    """Genomes in the cache: all that the largest population breeds in a round."""
    slots: int = 1 << 20
    """Slots of the hash table. With twice as many, a fifth of the genomes would be hidden by later ones."""


FEATURE_CACHE = FeatureCacheSettings()


@dataclass(frozen=True)
class SurrogateSettings:
    """The surrogate (`cost_model/surrogate.py`)."""

    min_rows: int = 8
    """Measured rows below which only the prior is used."""
    prior_std: float = 0.5
    """Standard deviation of the log of a figure while only the prior is used."""
    residual_clip: float = math.log(4)
    """Log distance above the median residual from which on residuals are clipped. Exact values of bad figures
    help little to predict good ones, and make the Gaussian process uncertain everywhere."""
    latency_residual_clip: float = 0.3
    """The same for the latency. Larger residuals are of kernels with effects that the prior does not model,
    such as bank conflicts."""
    lower_bound_stds: float = 2.0
    """Standard deviations below the mean at which a predicted power counts as a lower bound."""


SURROGATE = SurrogateSettings()


@dataclass(frozen=True)
class GaussianProcessSettings:
    """The Gaussian process (`cost_model/feature_process.py`)."""

    max_rows: int = 320
    """Rows that it learns from, at most; the time of a fit grows with their cube. Half are the best rows,
    half are spread evenly over the rest."""
    initial_adam_steps: int = 60
    """Optimisation steps of the first fit."""
    adam_steps: int = 8
    """Optimisation steps of every later fit, which continues the one before."""
    learning_rate: float = 0.1
    """Learning rate of Adam."""
    chunk_rows: int = 1024
    """Rows predicted at once, so that their covariances stay in cache."""
    group_covariance: float = 0.7
    """Covariance of rows of two groups, as a share of that within a group."""


GAUSSIAN_PROCESS = GaussianProcessSettings()


@dataclass(frozen=True)
class RowWeightSettings:
    """Weights of the rows that a model learns from (`cost_model/row_weights.py`)."""

    min_weight: float = 0.1
    """Weight of the worst rows. A model that never learns bad rows predicts good figures everywhere."""


ROW_WEIGHTS = RowWeightSettings()


@dataclass(frozen=True)
class MeteredTreeSettings:
    """The trees that a run trains on its metered kernels (`cost_model/metered_trees.py`). Chosen by us."""

    min_rows: int = 12
    """Metered kernels from which on trees are trained."""
    standard_errors: float = 1.0
    """Standard errors by which trees must make errors of kernels left out smaller. With 2, errors after 16
    to 32 kernels of the A4000 are 0.3 points larger; with 0, those of the A100 are 0.1 larger."""
    folds: int = 5
    """Parts of the metered kernels of which one is left out at a time, to decide whether the trees help."""
    rounds: int = 120
    """Number of trees."""
    max_depth: int = 5
    """Depth of a tree, at most."""
    eta: float = 0.12
    """Learning rate."""
    min_child_weight: float = 0.02
    """Sum of weights in a leaf, at least."""
    subsample: float = 0.9
    """Share of the rows that each tree learns from."""
    colsample_bytree: float = 0.7
    """Share of the features that each tree may use."""


METERED_TREES = MeteredTreeSettings()


@dataclass(frozen=True)
class PowerModelSettings:
    """The power model (`cost_model/power_model.py`)."""

    sharpness: float = 2.0
    """A kernel of twice the least energy has weight 2**-sharpness: the loss is that of arXiv 2411.18873."""
    work_penalty: float = 0.01
    """Ridge penalty on E0 of energy = P0 x latency + E0, in kernels at the mean latency. Weak: it decides
    where latencies are equal. From 0.0001 to 0.1 errors on recordings are the same."""
    exponent_variance: float = 0.01
    """Variance of the log latency at which metered kernels weigh as much as constant power, in the power law
    of the latency. With 0.1, errors after 8 kernels of two recordings are 0.2 and 0.3 points smaller, and
    those of five folds are larger."""
    share_error: float = 0.1
    """Relative error by which the two-number fit and the power law must differ on one kernel left out, for
    that kernel to weigh as much as equal shares. With 0.02 to 0.2, errors on recordings differ by a tenth."""
    prior_slope: float = 0.5
    """Slope that the log prior is shrunk to. Recorded kernels have 0.75
    (`benchmarks/cost_model/analytic.py`)."""
    prior_slope_variance: float = 0.003
    """Variance of the log prior at which metered kernels and `prior_slope` weigh the same."""
    min_rows: int = 4
    """Kernels from which on errors are judged: of the parametric part, and of the corrected prior."""
    doubt_standard_errors: float = 2.0
    """Standard errors by which the boosted model must make errors of kernels left out larger, to be off: a
    confidence of 95 %. With 0, errors on recordings/h100 are up to 3 points larger."""
    min_std: float = 0.02
    """Standard deviation of log watts, at least: kernels of equal features differ by about as much."""


POWER_MODEL = PowerModelSettings()


@dataclass(frozen=True)
class SpillSettings:
    """The spill model (`cost_model/surrogate.py`)."""

    stack_bytes: int = 64
    """Bytes of stack above which a kernel counts as spilled. ptxas uses a few bytes for other reasons."""
    min_feasibility: float = 1e-6
    """Probability of no spill, at least: infeasible kernels keep their order by score."""


SPILLS = SpillSettings()


@dataclass(frozen=True)
class MeteringSettings:
    """The share of metered kernels (`cost_model/learner.py`)."""

    share: float = 0.09
    """Metered kernels per timed kernel, without the finals, which meter about four more. As many as a share
    that followed the error of the predictions (docs/decisions/2026-11-28-fixed-metering-share.md)."""
    initial_meterings: int = 4
    """Kernels of the first round that are metered, ahead of the share."""
    card_window: int = 12
    """Last predictions that a model card judges, at most."""
    exploration_share: float = 0.3
    """Share of the metered kernels that is chosen to learn from, not for its expected improvement."""
    latency_slack: float = 1.1
    """Factor on the latency limit up to which kernels are metered: they teach the model, timings vary."""


METERING = MeteringSettings()


@dataclass(frozen=True)
class PeerSettings:
    """Learning of the layers of a model from each other (`cost_model/surrogate.py`)."""

    max_peers: int = 24
    """Layers that a layer learns from, at most: those of the nearest features."""
    max_rows: int = 240
    """Rows of all of these, at most."""


PEERS = PeerSettings()


@dataclass(frozen=True)
class ClockModelSettings:
    """The model of kernels over clocks (`ekc/search/clocks/clock_model.py`)."""

    usual_fixed_time_share: float = 0.3
    """Share of a latency that does not follow the clock, where nothing is known."""
    usual_memory_share: float = 0.2
    """Share of the energy of a call above idle that does not follow the core voltage, likewise."""
    usual_idle_share: float = 0.4
    """Idle power as a share of the least power of a kernel, where no idle power was measured."""
    usual_idle_shares: tuple[float, float, float] = (0.5, 0.3, 0.2)
    """Shares of the idle power: constant, with the square of the voltage, and that times the clock."""
    usual_weight: float = 0.02
    """Weight of the usual values in a fit, in readings."""
    max_idle_share: float = 0.95
    """Share of a kernel's power that may be idle power, at most."""
    knee_shares: tuple[float, ...] = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85)
    """Highest clock of the lowest voltage that are tried, as shares of the highest clock."""
    usual_knee_share: float = 0.65
    knee_share_std: float = 0.12
    """Recorded and fitted: 0.71 on the A100, 0.75 on the RTX A4000, 0.5 assumed for the H100."""
    rises: tuple[float, ...] = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5)
    """Rises of the voltage to the highest clock that are tried."""
    usual_rise: float = 0.3
    rise_std: float = 0.08
    """Recorded: 0.28 on the A100 and the RTX A4000."""
    curve_error: float = 0.01
    """Relative error of the power curve by which voltage curves are compared."""
    shared_power_std: float = 0.05
    own_power_std: float = 0.03
    """Standard deviations of what the power curve misses: of all kernels alike, and of each."""
    shared_latency_std: float = 0.01
    own_latency_std: float = 0.03
    """The same for the latency."""
    length_log_clock: float = 0.35
    """Natural logarithm of the ratio of two clocks over which those errors change."""
    min_error: float = 0.0005
    """Relative error of a latency, at least."""
    power_scatter: float = 0.01
    """Relative scatter of meterings of one kernel beyond their intervals: a board starts warmer or cooler."""


CLOCK_MODEL = ClockModelSettings()


@dataclass(frozen=True)
class ClockSearchSettings:
    """The search of clocks and kernels together (`ekc/search/clocks/clock_search.py`)."""

    kept_kernels: int = 6
    """Kernels of a layer that are followed over clocks, at most."""
    anchor_shares: tuple[float, ...] = (0.3, 0.5, 0.75, 1.0)
    """Clocks at which every kept kernel is timed, as shares of the highest. A timing compiles nothing and
    takes a small part of the seconds of a metering, so it is no trial."""
    lowest_share: float = 0.25
    """Lowest clock that is considered, as a share of the highest. Below, idle power makes every call cost
    more."""
    metered_share: float = 1 / 3
    """Share of the metered seconds of a whole run that the search of clocks takes, at most."""
    min_meterings: int = 8
    """Meterings that it may take in any case."""
    max_repeats: int = 3
    """Meterings of one kernel at one clock, at most."""
    draws: int = 64
    """Draws of the energies from which the value of another metering is estimated."""
    stop_saving: float = 0.001
    """Share of the energy below which knowing all energies would not pay: the search then ends."""
    max_failures: int = 3
    """Clocks that may fail before the search ends."""
    front_clocks: int = 8
    """Rows of the table of the best schedule over clocks, at least."""


CLOCK_SEARCH = ClockSearchSettings()
