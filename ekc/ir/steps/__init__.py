"""The steps of a schedule, one frozen dataclass each."""

from ekc.ir.steps.atomic import Atomic
from ekc.ir.steps.base import STEP_CLASSES, Hole, Step, step_from_json
from ekc.ir.steps.divide import Divide
from ekc.ir.steps.inline import ComputeInline
from ekc.ir.steps.loops import Fuse, Reorder, Split
from ekc.ir.steps.marks import Bind, Pipeline, Unroll, Vectorize
from ekc.ir.steps.pack import Pack
from ekc.ir.steps.rfactor import RFactor
from ekc.ir.steps.staging import CacheRead, CacheWrite, ComputeAt
from ekc.ir.steps.tensorize import Tensorize

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
