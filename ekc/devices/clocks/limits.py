"""The limits of one GPU: as values, read through NVML, and set.

NVML cannot read a clock limit. Reading needs no permission, setting needs root or CAP_SYS_ADMIN.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Set
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from ekc.devices.nvml.library import (
    THROTTLE_FUNCTIONS,
    call_nvml,
    load_nvml,
    make_nvml_error,
    retry_nvml,
)
from ekc.errors import ActuatorError

Limit = Literal["sm_mhz", "memory_mhz", "power_w"]
LIMITS: Final[tuple[Limit, ...]] = ("sm_mhz", "memory_mhz", "power_w")
"""The fields of `Settings`, in the order in which they are set."""
LIMIT_NAMES: Final[dict[Limit, str]] = {
    "sm_mhz": "the SM clock",
    "memory_mhz": "the memory clock",
    "power_w": "the power cap",
}
"""Names of the limits for people."""
_UNITS: Final[dict[Limit, str]] = {"sm_mhz": "whole MHz", "memory_mhz": "whole MHz", "power_w": "W"}
_PHRASES = {"sm_mhz": "SM up to {} MHz", "memory_mhz": "memory {} MHz", "power_w": "cap {:g} W"}
MAX_LIMIT = 1_000_000
"""MHz and watts that no board has."""


@dataclass(frozen=True)
class Settings:
    """Limits of one GPU, clocks as upper limits. None for a limit that keeps its previous value."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None


def parse_settings(values: Mapping[str, Any]) -> Settings:
    """Settings from a file or a message, whoever wrote it. A missing limit is None, other keys are ignored.
    Raises `ValueError` for values that are no limits."""
    found: dict[str, Any] = {limit: values.get(limit) for limit in LIMITS}
    for limit in LIMITS:
        value, kinds = found[limit], (int, float) if limit == "power_w" else (int,)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < MAX_LIMIT):
            raise ValueError(f"{limit} is {repr(value)[:40]}; give {_UNITS[limit]} above 0")
    return Settings(**found)


def format_settings(settings: Settings) -> str:
    """Settings for people, e.g. "SM up to 1410 MHz, cap 250 W"."""
    given = {limit: value for limit, value in asdict(settings).items() if value is not None}
    return ", ".join(_PHRASES[limit].format(value) for limit, value in given.items()) or "limits as before"


@dataclass(frozen=True)
class LimitReading:
    """Limits and clocks that a board shows at one moment; None where it shows nothing."""

    power_w: float | None
    """Power cap in force."""
    default_power_w: float | None
    sm_mhz: float | None
    """Present clock."""
    memory_mhz: float | None
    is_busy: bool
    """Whether kernels run most of the time."""
    is_throttled: bool
    """Whether the driver gives a reason for a low clock other than a clock limit, or gives no reasons."""


@dataclass(frozen=True)
class OfferedSettings:
    """Values that an actuator can set, each tuple ascending; empty for a limit that it cannot set."""

    sm_mhz: tuple[int, ...] = ()
    memory_mhz: tuple[int, ...] = ()
    power_w: tuple[float, ...] = ()


def select_offered(
    offered: OfferedSettings, lowest: Settings, highest: Settings, taken: Set[Limit]
) -> OfferedSettings:
    """Values between two settings, of the limits that others have not taken; none once others have set a
    clock."""
    if taken - {"power_w"}:
        return OfferedSettings()
    values: dict[str, Any] = {}
    for limit in LIMITS:
        low, high = getattr(lowest, limit) or 0, getattr(highest, limit)
        allowed = (x for x in getattr(offered, limit) if low <= x and (high is None or x <= high))
        values[limit] = () if limit in taken else tuple(allowed)
    return OfferedSettings(**values)


@dataclass(frozen=True)
class ActuatorReference:
    """Data with which another process opens the same actuator. No secret: tokens stay in the environment."""

    kind: str
    """"nvml", "daemon" or "zeusd"."""
    gpu: str
    """UUID of the GPU."""
    address: str = ""
    """Address of a daemon: the path of its socket, or host:port."""


class LimitTaken(ActuatorError):
    """Others have set a limit while it was governed: it is theirs from then on, and is not set any more."""


_VOLTA, _AMPERE = 5, 7
"""NVML_DEVICE_ARCH values of the first architectures whose SM clock and memory clock can be limited."""
_UNKNOWN_ARCHITECTURE = 0xFFFFFFFF
_UNTHROTTLED_REASONS = 0x1 | 0x2 | 0x100
"""Bits of the reasons for a low clock that do not slow down work: idleness, and clocks that a user set."""
BUSY_PERCENT = 80
"""SM use in percent from which a board raises its clock as far as its limits allow."""


def normalize_pci_address(text: str) -> str:
    """A PCI address as `lspci -D` writes it, with a domain of four digits: some have none, NVML eight."""
    parts = text.strip().lower().split(":")
    domain = parts[0] if len(parts) > 2 else ""
    return ":".join((domain[-4:].zfill(4), *parts[-2:]))


class NvmlLimitReader:
    """Reads the limits of one GPU, named by its UUID."""

    def __init__(self, uuid: str) -> None:
        self.library = load_nvml()
        self.uuid = uuid
        self.handle = call_nvml(uuid, self.library.nvmlDeviceGetHandleByUUID, uuid)
        self.index = int(self._call("index", "nvmlDeviceGetIndex"))
        self.product_name = str(self._call("name", "nvmlDeviceGetName"))
        self.name = f"GPU {self.index} ({self.product_name})"

    def list_offered(self) -> OfferedSettings:
        """Values that can be set: clocks that this architecture can limit, and power in steps of 5 W."""
        arch = self._call("architecture", "nvmlDeviceGetArchitecture")
        is_known = arch != _UNKNOWN_ARCHITECTURE
        memory = self._read_clocks("nvmlDeviceGetSupportedMemoryClocks")
        sm = self._read_clocks("nvmlDeviceGetSupportedGraphicsClocks", memory[-1]) if memory else ()
        return OfferedSettings(
            sm_mhz=sm if is_known and arch >= _VOLTA else (),
            memory_mhz=memory if is_known and arch >= _AMPERE else (),
            power_w=self._read_power_caps(),
        )

    def settings(self) -> Settings:
        """The power cap where it is not the default; clock limits cannot be read and are None."""
        if not self._read_power_caps():
            return Settings()
        cap = self._call("power limit", "nvmlDeviceGetPowerManagementLimit")
        return Settings(power_w=None if cap == self.read_default_cap_mw() else cap / 1000)

    def read_cap_w(self) -> float | None:
        """Power cap in force, in watts; None where the card has none."""
        cap_mw = self._read_or_none("nvmlDeviceGetPowerManagementLimit")
        return None if cap_mw is None else cap_mw / 1000

    def read_default_cap_mw(self) -> int:
        """Default power cap of the card, in milliwatts."""
        return int(self._call("default power limit", "nvmlDeviceGetPowerManagementDefaultLimit"))

    def read_pci_address(self) -> str:
        """PCI address of the GPU as `lspci -D` writes it."""
        found = self._call("PCI address", "nvmlDeviceGetPciInfo").busId
        return normalize_pci_address(found.decode() if isinstance(found, bytes) else str(found))

    def read_board(self) -> LimitReading:
        """Limits and clocks of the board now. Raises `ActuatorError` for a lost GPU."""
        default_mw = self._read_or_none("nvmlDeviceGetPowerManagementDefaultLimit")
        clocks = [
            self._read_or_none("nvmlDeviceGetClockInfo", kind)
            for kind in (self.library.NVML_CLOCK_SM, self.library.NVML_CLOCK_MEM)
        ]
        use = self._read_or_none("nvmlDeviceGetUtilizationRates")
        reasons = next((x for f in THROTTLE_FUNCTIONS if (x := self._read_or_none(f)) is not None), None)
        return LimitReading(
            power_w=self.read_cap_w(),
            default_power_w=None if default_mw is None else default_mw / 1000,
            sm_mhz=clocks[0],
            memory_mhz=clocks[1],
            is_busy=use is not None and use.gpu >= BUSY_PERCENT,
            is_throttled=reasons is None or bool(reasons & ~_UNTHROTTLED_REASONS),
        )

    def _read_or_none(self, function: str, *arguments: Any) -> Any:
        """Result of a reading, None where this card or driver has none. Raises where the GPU is lost."""
        call = getattr(self.library, function, None)
        try:
            return None if call is None else retry_nvml(call, self.handle, *arguments)
        except self.library.NVMLError as problem:
            if problem.value == self.library.NVML_ERROR_GPU_IS_LOST:
                raise make_nvml_error(f"{self.name}, {function}", problem) from problem
            return None

    def _read_power_caps(self) -> tuple[float, ...]:
        """Power caps up to the default, or to a higher cap in force: no card gets more than it had."""
        constraints = self._call_if_supported("nvmlDeviceGetPowerManagementLimitConstraints")
        if not constraints:
            return ()
        now = self._call("power limit", "nvmlDeviceGetPowerManagementLimit")
        most = max(now, self.read_default_cap_mw())
        low, high = (round(min(mw, most) / 1000) for mw in constraints)
        return (*(float(w) for w in range(low, high, 5)), float(high))

    def _read_clocks(self, function: str, *arguments: Any) -> tuple[int, ...]:
        return tuple(sorted(self._call_if_supported(function, *arguments) or ()))

    def _call_if_supported(self, function: str, *arguments: Any) -> Any:
        try:
            return retry_nvml(getattr(self.library, function), self.handle, *arguments)
        except self.library.NVMLError as problem:
            if problem.value == self.library.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise make_nvml_error(f"{self.name}, {function}", problem) from problem

    def _call(self, quantity: str, function: str) -> Any:
        return call_nvml(f"the {quantity} of {self.uuid}", getattr(self.library, function), self.handle)


class LimitSetter(NvmlLimitReader):
    """Sets the limits of one GPU; possible values and the cap are read by NVML. Only a lease
    (`ekc.devices.clocks.lease`) may call `set_limit`."""

    kind = ""
    """See `ActuatorReference`."""

    def __init__(self, uuid: str, address: str = "") -> None:
        super().__init__(uuid)
        self._offered = super().list_offered()
        self.reference = ActuatorReference(self.kind, uuid, address)
        """Reference for another process, by UUID, which does not depend on the order of GPUs."""
        self.label = f"{f'{self.kind} at {address}' if address else 'NVML'}, {self.name}"
        """Name for messages, e.g. "NVML, GPU 0 (NVIDIA A40)"."""

    def list_offered(self) -> OfferedSettings:
        """Values that this card can be set to."""
        return self._offered

    def check_permission(self) -> None:
        """Set a limit to its present value, or ask the daemon. Raises `ActuatorError` where this process may
        not."""
        raise NotImplementedError

    def set_limit(self, limit: Limit, value: float | None) -> None:
        """Set one limit; None resets it to the default of the driver. Raises `ActuatorError`."""
        raise NotImplementedError

    def _convert_to_milliwatts(self, power_w: float | None) -> int:
        """A power cap, or the default one for None."""
        return self.read_default_cap_mw() if power_w is None else round(power_w * 1000)

    def _make_clock_range(self, limit: Limit, mhz: float) -> tuple[int, int]:
        """The lowest clock that can be set, and the upper limit."""
        return min(min(getattr(self._offered, limit), default=0), int(mhz)), int(mhz)


class GovernedLimits:
    """Base of the actuators of a `LeaseKeeper`: the limits of one GPU, and the last request."""

    simulated = False

    def __init__(self, limit_setter: LimitSetter, renew_lease: Callable[[], None]) -> None:
        self._limit_setter = limit_setter
        self._renew_lease = renew_lease
        self._lock = threading.Lock()
        """Serialises the control loop and the heartbeat, which both set limits: the last request counts."""
        self._requested_settings = Settings()

    @property
    def label(self) -> str:
        """Label of the actuator."""
        return self._limit_setter.label

    def settings(self) -> Settings:
        """Settings requested last; None for a limit that is as before."""
        return self._requested_settings


class NvmlLimits(LimitSetter):
    """Sets the limits of one GPU through NVML."""

    kind = "nvml"

    def check_permission(self) -> None:
        """Set the power cap to its present value. Raises `ActuatorError` where setting is not permitted."""
        if not self._offered.power_w:
            return  # E.g. a laptop: permission shows when the first clock is set.
        now = call_nvml("the power limit", self.library.nvmlDeviceGetPowerManagementLimit, self.handle)
        set_cap = self.library.nvmlDeviceSetPowerManagementLimit
        call_nvml(f"setting limits of {self.name}", set_cap, self.handle, now)

    def set_limit(self, limit: Limit, value: float | None) -> None:
        """Set one limit; clocks from the lowest value up to the given one."""
        what, library, handle = f"setting {LIMIT_NAMES[limit]} of {self.name}", self.library, self.handle
        if limit == "power_w":
            milliwatts = self._convert_to_milliwatts(value)
            call_nvml(what, library.nvmlDeviceSetPowerManagementLimit, handle, milliwatts)
        elif value is None:
            call_nvml(what, getattr(library, _RESET_FUNCTIONS[limit]), handle)
        else:
            lock = getattr(library, _LOCK_FUNCTIONS[limit])
            call_nvml(what, lock, handle, *self._make_clock_range(limit, value))


_LOCK_FUNCTIONS = {"sm_mhz": "nvmlDeviceSetGpuLockedClocks", "memory_mhz": "nvmlDeviceSetMemoryLockedClocks"}
_RESET_FUNCTIONS = {
    "sm_mhz": "nvmlDeviceResetGpuLockedClocks",
    "memory_mhz": "nvmlDeviceResetMemoryLockedClocks",
}
