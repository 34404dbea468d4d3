"""Predictions of the simulated device for each kernel of a pack, filed before a GPU runs any of them.

The device follows its models exactly (no residual), at the highest clock of the GPU. Of each kernel there are
the time of a short measurement, before the power cap acts; the time that can be sustained under the cap; the
energy of a call then; and the time by the analytic prior, the trivial predictor. One small file of gzip holds
them with the schedules, the digests of schedules and machine code, the first choices, and a SHA-256 over all
of it. Any machine makes the same pack from the file; see `make.py`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.packs.file import PackedKernel
from ekc import devices
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Quantities
from ekc.devices.simulated import specs
from ekc.devices.simulated.device import SimulatedDevice
from ekc.errors import DeviceError, RecordError
from ekc.file_limits import parse_json, read_plain_file

FORMAT, VERSION = "ekc predictions", 2
FOLDER = Path(__file__).parent / "predictions"
FIGURES = ("short_s", "sustained_s", "energy_j", "prior_s")
DIGITS = 5
"""Significant digits of a figure."""
CODE_DIGITS = 16
SLOWDOWN = 0.05
"""The first choice by energy is at most so much slower than the fastest, both as predicted."""
NO_CAP_W = 1e6
"""Watts of a power cap that no kernel reaches."""


@dataclass(frozen=True)
class Prediction:
    """Claims about one kernel; seconds and joules of a call."""

    short_s: float
    sustained_s: float
    energy_j: float
    prior_s: float


@lru_cache(maxsize=2)
def open_models(name: str) -> tuple[SimulatedDevice, SimulatedDevice]:
    """The simulated device at its highest clock without a residual: with its power cap, and without one.
    Raises `DeviceError` for another kind of device."""
    capped, spec = devices.open(f"{name}@{devices.NO_RESIDUAL}"), specs.find_spec(name)
    if spec is None or not isinstance(capped, SimulatedDevice):
        raise DeviceError(f"--device {name}: a pack is made for a simulated device; choose h100 or a100")
    top = capped.clocks().mhz[-1]
    power = replace(spec.power, tdp_w=NO_CAP_W)
    free = SimulatedDevice(replace(spec, power=power), top, has_residual=False)
    return capped.at_clock(top), free


def choose_by_energy(joules: NDArray[np.float64], seconds: NDArray[np.float64]) -> int:
    """The first choice by energy among kernels: the least joules at most `SLOWDOWN` slower."""
    return int(np.argmin(np.where(seconds <= (1.0 + SLOWDOWN) * seconds.min(), joules, np.inf)))


def predict(name: str, quantities: Quantities, kernel: CompiledKernel) -> Prediction:
    """The claims about a compiled kernel. Raises `EkcError` where the model cannot run it."""
    capped, free = open_models(name)
    settled = capped.break_down_energy(kernel)
    return Prediction(
        short_s=free.break_down_energy(kernel).latency_s,
        sustained_s=settled.latency_s,
        energy_j=settled.energy_j,
        prior_s=float(capped.prior(quantities).latency_s[0]),
    )


@dataclass(frozen=True, eq=False)
class OperatorPredictions:
    """Claims about the kernels of one operator, in the order of the pack."""

    name: str
    schedules: tuple[str, ...]
    """Digests of the schedules."""
    codes: tuple[str, ...]
    """First `CODE_DIGITS` digits of the SHA-256 of the machine code."""
    steps: tuple[str, ...]
    """The schedules as JSON, without their operator."""
    structures: tuple[str, ...]
    strata: Mapping[str, int]
    """Kernels of each stratum of the rule; those of a stratum follow each other."""
    figures: Mapping[str, NDArray[np.float64]]
    """`FIGURES` by name, [n]."""

    @property
    def first_by_time(self) -> str:
        """The schedule of the shortest sustained time."""
        return self.schedules[int(np.argmin(self.figures["sustained_s"]))]

    @property
    def first_by_energy(self) -> str:
        """The schedule of least energy among those at most `SLOWDOWN` slower than the fastest."""
        return self.schedules[choose_by_energy(self.figures["energy_j"], self.figures["sustained_s"])]


@dataclass(frozen=True, eq=False)
class Predictions:
    """A file of predictions."""

    conditions: Mapping[str, Any]
    """Device, simulator, clock, versions, rule."""
    operators: tuple[OperatorPredictions, ...]
    sha256: str

    def find(self, name: str) -> OperatorPredictions:
        """The claims about an operator. Raises `RecordError`."""
        found = [one for one in self.operators if one.name == name]
        if not found:
            names = ", ".join(one.name for one in self.operators)
            raise RecordError(f"the predictions have no operator {name}; they have {names}")
        return found[0]


def collect_predictions(
    name: str, kernels: Sequence[PackedKernel], predictions: Sequence[Prediction]
) -> OperatorPredictions:
    """The claims about the kernels of an operator, rounded to `DIGITS`."""
    figures = {
        figure: np.array([float(f"{getattr(one, figure):.{DIGITS}g}") for one in predictions])
        for figure in FIGURES
    }
    return OperatorPredictions(
        name,
        tuple(kernel.digest for kernel in kernels),
        tuple(kernel.code_digest[:CODE_DIGITS] for kernel in kernels),
        tuple(kernel.steps for kernel in kernels),
        tuple(kernel.structure for kernel in kernels),
        Counter(kernel.stratum for kernel in kernels),
        figures,
    )


def write_predictions(
    path: Path, conditions: Mapping[str, Any], operators: Sequence[OperatorPredictions]
) -> str:
    """Write the file, the same bytes for the same content. Returns the SHA-256 over all of it."""
    body = {"conditions": dict(conditions), "operators": [_to_json(one) for one in operators]}
    sha256 = _hash(body)
    text = json.dumps({"format": FORMAT, "version": VERSION, "sha256": sha256, **body}, separators=(",", ":"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    except OSError as problem:
        raise RecordError(f"predictions {path} cannot be written: {problem.strerror}") from None
    return sha256


def read_predictions(path: Path) -> Predictions:
    """Read a file of predictions. Raises `RecordError` for one that is absent, damaged or changed."""
    try:
        data = parse_json(gzip.decompress(read_plain_file(path)))
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise ValueError(f"it is no file of {FORMAT}, version {VERSION}")
        body = {"conditions": data["conditions"], "operators": data["operators"]}
        if _hash(body) != data["sha256"]:
            raise ValueError("its SHA-256 is another: it was changed")
        operators = tuple(_from_json(one) for one in data["operators"])
    except OSError as problem:
        raise RecordError(f"predictions {path} cannot be read: {problem.strerror or problem}") from None
    except (ValueError, TypeError, KeyError, EOFError) as problem:
        raise RecordError(f"predictions {path}: {problem}") from None
    return Predictions(data["conditions"], operators, data["sha256"])


def find_predictions(device: str, pack: Path) -> Path:
    """The predictions of a pack: a file beside it, else the committed ones of its simulated device."""
    beside = pack.parent / name_file(device)
    return beside if beside.exists() else FOLDER / beside.name


def name_file(device: str) -> str:
    """Name of the file for a simulated device."""
    return f"{device}.json.gz"


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _to_json(one: OperatorPredictions) -> dict[str, Any]:
    return {
        "name": one.name,
        "strata": dict(one.strata),
        "first_by_time": one.first_by_time,
        "first_by_energy": one.first_by_energy,
        "schedules": " ".join(one.schedules),
        "codes": " ".join(one.codes),
        "steps": list(one.steps),
        "structures": list(one.structures),
        **{name: one.figures[name].tolist() for name in FIGURES},
    }


def _from_json(data: Mapping[str, Any]) -> OperatorPredictions:
    figures = {name: np.array(data[name], dtype=np.float64) for name in FIGURES}
    schedules, codes = tuple(data["schedules"].split()), tuple(data["codes"].split())
    steps, structures = tuple(data["steps"]), tuple(data["structures"])
    columns = schedules, steps, structures, *figures.values()
    if {len(column) for column in columns} != {len(codes)} or sum(data["strata"].values()) != len(codes):
        raise ValueError(f"{data['name']}: its columns differ in length")
    return OperatorPredictions(data["name"], schedules, codes, steps, structures, data["strata"], figures)
