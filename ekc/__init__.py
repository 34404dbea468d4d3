"""ekc: the energy-aware kernel compiler. The public names; heavy modules load at their first use.

>>> import ekc
>>> result = ekc.tune(ekc.matmul(1024, 1024, 1024), target="a100", trials=128)
>>> print(result.summary())
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ekc.errors import (
    ActuatorError,
    CompileError,
    DeviceError,
    EkcError,
    InvalidInput,
    KernelFault,
    NothingLegal,
    RecordError,
    ScheduleError,
    ToolchainError,
)
from ekc.forks import hold_forks
from ekc.version import __version__

if TYPE_CHECKING:
    from ekc import codegen, course, devices, emulator, governor, models, runtime
    from ekc.explorer.server import explore
    from ekc.governor.governor import Governor
    from ekc.ir.expr import (
        abs,
        equal,
        erf,
        exp,
        gelu,
        less,
        log,
        maximum,
        minimum,
        relu,
        rsqrt,
        sigmoid,
        silu,
        sqrt,
        tanh,
        where,
    )
    from ekc.ir.operator import Operator
    from ekc.ir.operators import (
        batch_matmul,
        compute,
        conv1d,
        conv2d,
        conv3d,
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
        einsum,
        layer_norm,
        matmul,
        matvec,
        reduce,
        rms_norm,
        softmax,
    )
    from ekc.ir.schedule.schedule import Schedule
    from ekc.runtime.kernel import compile
    from ekc.search.data.events import TuningEvent
    from ekc.search.data.trial import Trial
    from ekc.search.database.query import best
    from ekc.search.tune import tune
    from ekc.search.tuning_result import TuningResult
    from ekc.search.whole_model.model_result import ModelResult
    from ekc.search.whole_model.tune_model import tune_model

_NAMES_BY_MODULE = {
    "ekc.ir.operators": (
        "batch_matmul",
        "compute",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "einsum",
        "layer_norm",
        "matmul",
        "matvec",
        "reduce",
        "rms_norm",
        "softmax",
    ),
    "ekc.ir.expr": (
        "abs",
        "equal",
        "erf",
        "exp",
        "gelu",
        "less",
        "log",
        "maximum",
        "minimum",
        "relu",
        "rsqrt",
        "sigmoid",
        "silu",
        "sqrt",
        "tanh",
        "where",
    ),
    "ekc.ir.operator": ("Operator",),
    "ekc.ir.schedule.schedule": ("Schedule",),
    "ekc.runtime.kernel": ("compile",),
    "ekc.governor.governor": ("Governor",),
    "ekc.search.data.events": ("TuningEvent",),
    "ekc.search.tune": ("tune",),
    "ekc.search.whole_model.model_result": ("ModelResult",),
    "ekc.search.whole_model.tune_model": ("tune_model",),
    "ekc.explorer.server": ("explore",),
    "ekc.search.tuning_result": ("TuningResult",),
    "ekc.search.database.query": ("best",),
    "ekc.search.data.trial": ("Trial",),
}
_MODULE_BY_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}
_SUBPACKAGES = ("codegen", "course", "devices", "emulator", "governor", "ir", "models", "runtime", "search")

__all__ = [
    "ActuatorError",
    "CompileError",
    "DeviceError",
    "EkcError",
    "Governor",
    "InvalidInput",
    "KernelFault",
    "ModelResult",
    "NothingLegal",
    "Operator",
    "RecordError",
    "Schedule",
    "ScheduleError",
    "ToolchainError",
    "Trial",
    "TuningEvent",
    "TuningResult",
    "__version__",
    "abs",
    "batch_matmul",
    "best",
    "codegen",
    "compile",
    "compute",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "course",
    "devices",
    "einsum",
    "emulator",
    "equal",
    "erf",
    "exp",
    "explore",
    "gelu",
    "governor",
    "layer_norm",
    "less",
    "log",
    "matmul",
    "matvec",
    "maximum",
    "minimum",
    "models",
    "reduce",
    "relu",
    "rms_norm",
    "rsqrt",
    "runtime",
    "sigmoid",
    "silu",
    "softmax",
    "sqrt",
    "tanh",
    "tune",
    "tune_model",
    "where",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module at the first use."""
    if name not in _SUBPACKAGES and name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'ekc' has no attribute {name!r}")
    # A process forked by another thread in the middle of the import would wait for its end for ever.
    with hold_forks():
        if name in _SUBPACKAGES:
            return importlib.import_module(f"ekc.{name}")
        return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return __all__
