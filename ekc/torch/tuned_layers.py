"""Which kernel computes a layer: by the result of `ekc.tune_model`, or by a record file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ekc import devices
from ekc.argument_checks import check_path, format_value
from ekc.errors import EkcError, InvalidInput
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.runtime.kernel import Kernel, compile
from ekc.search.data.trial import Trial
from ekc.search.database.database import RecordStore
from ekc.search.database.query import choose_best

NOT_TUNED = "not tuned"


@dataclass(frozen=True)
class TunedLayers:
    """Best schedules of operators on one device, and why others have none. Keys are digests."""

    label: str
    """Printed name of the device: "a100 (simulated)"."""
    simulated: bool
    arch: str
    limits: LaunchLimits | None
    trials: Mapping[str, Trial]
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why tuning failed, a line each."""

    def compile(self, op: Operator) -> Kernel | str:
        """The kernel of a layer, or in one line why it has none."""
        if op.digest in self.failures:
            return self.failures[op.digest]
        if op.digest not in self.trials:
            return NOT_TUNED
        try:
            # No device: tensors on the CPU are computed by the PTX machine.
            return compile(self.trials[op.digest].schedule, arch=self.arch, limits=self.limits)
        except EkcError as problem:
            return f"not compiled: {problem}"


def read_records(ops: Iterable[Operator], records: str | Path, target: str) -> TunedLayers:
    """Best schedules of a record file, by the rule of `ekc.best`.

    Raises `RecordError` for the file, `DeviceError` for the target, `InvalidInput` for arguments.
    """
    path, device, trials = check_path("records", records), devices.open(target), dict[str, Trial]()
    with RecordStore(path, create=False):
        # Raises for a file that is no record file, whatever the operators are.
        pass
    for op in ops:
        try:
            trials[op.digest] = choose_best(op, path, device)
        except InvalidInput:
            # No metered schedule under these conditions.
            continue
    return TunedLayers(device.label, device.simulated, device.arch, device.limits, trials)


def read_result(result: Any) -> TunedLayers:
    """Best schedules of a result of `ekc.tune_model`. Raises `InvalidInput` for anything else."""
    layers, device = getattr(result, "layers", None), getattr(result, "device", None)
    if not isinstance(layers, tuple) or device is None:
        raise InvalidInput(
            f"result: {format_value(result)} is no result of ekc.tune_model; "
            'give one, or records="tuning.db" and target="a100"'
        )
    tuned = {one.layer.op.digest: one.result.best for one in layers if one.result is not None}
    failures = {one.layer.op.digest: one.failure for one in layers if one.result is None}
    return TunedLayers(device.label, device.simulated, device.arch, device.limits, tuned, failures)
