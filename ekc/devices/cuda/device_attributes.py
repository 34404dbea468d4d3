"""Properties of a GPU as its driver reports them, and the limits and ceilings that follow."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ekc.devices.cuda.driver import Driver
from ekc.devices.device import Peaks
from ekc.devices.simulated.specs import GpuSpec, find_product, find_throughput
from ekc.ir.hardware.target import LaunchLimits, make_arch, restrict_to_arch

ATTRIBUTES = (
    "COMPUTE_CAPABILITY_MAJOR",
    "COMPUTE_CAPABILITY_MINOR",
    "MULTIPROCESSOR_COUNT",
    "MAX_THREADS_PER_BLOCK",
    "MAX_BLOCK_DIM_Z",
    "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "MAX_THREADS_PER_MULTIPROCESSOR",
    "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "MAX_GRID_DIM_X",
    "MAX_GRID_DIM_Y",
    "L2_CACHE_SIZE",
    "CLOCK_RATE",
    "MEMORY_CLOCK_RATE",
    "GLOBAL_MEMORY_BUS_WIDTH",
)


ASSUMED_CLOCK_MHZ = 1000.0
"""Clock in MHz that is assumed for a GPU whose driver does not report its highest clock."""
ASSUMED_BYTES_PER_FLOP = 0.04
"""Bytes per fp32 operation, as of a T4 or Jetson Orin, where a driver reports no memory clock or width."""


@dataclass(frozen=True)
class GpuProperties:
    """Properties of one GPU, as its driver reports them."""

    name: str
    gpu_count: int
    """Number of GPUs that the driver shows here."""
    uuid: str
    memory_bytes: int
    driver_version: int
    attributes: dict[str, int]

    @classmethod
    def query(cls, driver: Driver, index: int) -> GpuProperties:
        """Read the properties from the driver."""
        return cls(
            name=driver.get_name(index),
            gpu_count=driver.count_gpus(),
            uuid=driver.get_uuid(index),
            memory_bytes=driver.get_memory_bytes(index),
            driver_version=driver.get_version(),
            attributes={name: driver.get_attribute(index, name) for name in ATTRIBUTES},
        )

    @property
    def capability(self) -> int:
        """Compute capability: 80 is 8.0."""
        return 10 * self.attributes["COMPUTE_CAPABILITY_MAJOR"] + self.attributes["COMPUTE_CAPABILITY_MINOR"]

    @property
    def l2_bytes(self) -> int:
        """Bytes of the L2."""
        return self.attributes["L2_CACHE_SIZE"]

    @property
    def clock_mhz(self) -> float:
        """Highest SM clock in MHz."""
        return self.attributes["CLOCK_RATE"] / 1000.0 or ASSUMED_CLOCK_MHZ

    @property
    def assumptions(self) -> str:
        """Message on ceilings assumed where the driver reports 0 (Jetson, virtual GPUs), or ""."""
        assumed = [] if self.attributes["CLOCK_RATE"] else [f"a clock of {ASSUMED_CLOCK_MHZ:.0f} MHz"]
        if not self._reported_bytes_per_s:
            assumed.append(f"memory of {self._bytes_per_s / 1e9:.0f} GB/s")
        if not assumed:
            return ""
        return (
            f"the driver does not report all of {self.name}: assumed for predictions is {', '.join(assumed)}"
        )

    def limits(self) -> LaunchLimits:
        """Limits that a schedule must keep on this GPU."""
        a = self.attributes
        own = LaunchLimits(
            threads_per_block=a["MAX_THREADS_PER_BLOCK"],
            threads_per_block_z=a["MAX_BLOCK_DIM_Z"],
            shared_bytes_per_block=a["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"],
            registers_per_sm=a["MAX_REGISTERS_PER_MULTIPROCESSOR"],
            shared_bytes_per_sm=a["MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"],
            threads_per_sm=a["MAX_THREADS_PER_MULTIPROCESSOR"],
            blocks_per_sm=a["MAX_BLOCKS_PER_MULTIPROCESSOR"],
            sms=a["MULTIPROCESSOR_COUNT"],
            grid_x=a["MAX_GRID_DIM_X"],
            grid_yz=a["MAX_GRID_DIM_Y"],
        )
        return restrict_to_arch(own, make_arch(self.capability))

    def find_spec(self) -> GpuSpec | None:
        """The data sheet of this GPU, with L2 and memory bandwidth as the driver reports them; None where it
        is unknown."""
        spec = find_product(self.name, make_arch(self.capability), self.attributes["MULTIPROCESSOR_COUNT"])
        if spec is None:
            return None
        bytes_per_s = self._reported_bytes_per_s or spec.memory_bytes_per_s
        return replace(spec, l2_bytes=self.l2_bytes or spec.l2_bytes, memory_bytes_per_s=bytes_per_s)

    def peaks(self, clock_mhz: float, board_power_w: float) -> Peaks:
        """Ceilings at a clock, all above 0; `assumptions` names those that are assumed."""
        source = self.assumptions or "the driver; what an SM does a clock is of NVIDIA's whitepapers"
        cycles = self._compute_cycles_per_s(clock_mhz)
        return find_throughput(self.capability).compute_peaks(
            cycles, self._bytes_per_s, board_power_w, source
        )

    def _compute_cycles_per_s(self, clock_mhz: float) -> float:
        """Clock cycles of all SMs per second."""
        return self.attributes["MULTIPROCESSOR_COUNT"] * clock_mhz * 1e6

    @property
    def _reported_bytes_per_s(self) -> float:
        """Memory bandwidth by the driver's clock and width: two words a clock, on all GPUs."""
        word = self.attributes["GLOBAL_MEMORY_BUS_WIDTH"] / 8
        return 2.0 * self.attributes["MEMORY_CLOCK_RATE"] * 1e3 * word

    @property
    def _bytes_per_s(self) -> float:
        flops = self._compute_cycles_per_s(self.clock_mhz) * find_throughput(self.capability).fp32_lanes * 2
        return self._reported_bytes_per_s or ASSUMED_BYTES_PER_FLOP * flops
