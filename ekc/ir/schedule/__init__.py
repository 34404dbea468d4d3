"""The steps of a schedule, one frozen dataclass each."""

from ekc.ir.schedule.annotations import Atomic, Bind, Pipeline, Tensorize, Unroll, Vectorize
from ekc.ir.schedule.caching import CacheRead, CacheWrite, ComputeAt
from ekc.ir.schedule.graph_rewrites import Pack, RFactor
from ekc.ir.schedule.holes import Hole
from ekc.ir.schedule.inline import ComputeInline
from ekc.ir.schedule.loops import Divide, Fuse, Reorder, Split
from ekc.ir.schedule.step import STEP_CLASSES, Step, step_from_json

__all__ = [
    "STEP_CLASSES",
    "Atomic",
    "Bind",
    "CacheRead",
    "CacheWrite",
    "ComputeAt",
    "ComputeInline",
    "Divide",
    "Fuse",
    "Hole",
    "Pack",
    "Pipeline",
    "RFactor",
    "Reorder",
    "Split",
    "Step",
    "Tensorize",
    "Unroll",
    "Vectorize",
    "step_from_json",
]
