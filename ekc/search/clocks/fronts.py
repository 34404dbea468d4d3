"""Figures of the kernels of a model over clocks: what a clock plan is chosen from.

A model has layers, a layer has kernels that compute it, and a kernel has a latency and an energy at each
clock, measured or predicted. One operator is a model of one layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ekc.devices.statistics import MeasuredValue
from ekc.errors import InvalidInput


@dataclass(frozen=True)
class KernelFront:
    """One kernel over all clocks of a `ModelFronts`. Figures are per call of the kernel."""

    digest: str
    """Digest of the schedule."""
    role: str
    """"fastest" or "best" at the default clock, "fastest and best", or "front"."""
    latency_s: tuple[MeasuredValue, ...]
    """Latency in seconds at each clock."""
    energy_j: tuple[MeasuredValue, ...]
    """Energy in joules at each clock."""
    is_metered: tuple[bool, ...]
    """Whether the energy at each clock was metered; otherwise it is predicted."""


@dataclass(frozen=True)
class LayerFront:
    """The kernels of one layer over clocks."""

    name: str
    operator: str
    """Digest of the operator."""
    calls: Mapping[str, int]
    """Calls in one pass of the model, by phase ("prefill", "decode"); one entry for a model of one phase."""
    kernels: tuple[KernelFront, ...]

    @property
    def call_count(self) -> int:
        """Calls of all phases."""
        return sum(self.calls.values())


@dataclass(frozen=True)
class ModelFronts:
    """The layers of a model over the clocks of one device. Raises `InvalidInput` for lengths that differ."""

    device: str
    """Name of the device, as `Device.name`."""
    simulated: bool
    clocks_mhz: tuple[int, ...]
    """Clocks in MHz, ascending."""
    default_mhz: int
    """The clock among them that the device runs at where none is set."""
    layers: tuple[LayerFront, ...]

    def __post_init__(self) -> None:
        if not self.layers or not all(layer.kernels for layer in self.layers):
            raise InvalidInput("layers: a clock plan needs one layer or more, each with one kernel or more")
        if self.default_mhz not in self.clocks_mhz:
            raise InvalidInput(f"default_mhz: {self.default_mhz} MHz is not among the clocks")
        count = len(self.clocks_mhz)
        for layer in self.layers:
            if layer.call_count < 1:
                raise InvalidInput(f"layer {layer.name}: {layer.call_count} calls, at least 1")
            for kernel in layer.kernels:
                if not len(kernel.latency_s) == len(kernel.energy_j) == len(kernel.is_metered) == count:
                    raise InvalidInput(
                        f"layer {layer.name}: kernel {kernel.digest} needs {count} figures, one a clock"
                    )
