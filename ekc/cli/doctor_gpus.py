"""The GPUs for `ekc doctor`: what can be measured on each, what not, and why."""

from __future__ import annotations

from typing import Any

from ekc.devices.base import NOT_TOLD
from ekc.devices.cuda.driver import version_text
from ekc.devices.cuda.machine_code import too_old
from ekc.devices.nvml.behaviour import Behaviour, observe
from ekc.devices.nvml.library import explained, nvml, uuid_of
from ekc.devices.nvml.permission import refusal
from ekc.devices.nvml.sensors import Sensors
from ekc.errors import EkcError
from ekc.ir.limits import target_of


def gpus(nvrtc: str | None, archs: list[str]) -> dict[str, Any]:
    """Driver and every GPU; a GPU that fails costs its own lines alone."""
    from ekc.devices import nvml as presence

    found = presence.gpus()
    if isinstance(found, presence.Absent):
        return {"count": 0, "reason": found.reason, "measured": _NOTHING}
    try:
        library = nvml()
        driver = str(explained("the driver's version", library.nvmlSystemGetDriverVersion))
        cuda = int(explained("the driver's CUDA version", library.nvmlSystemGetCudaDriverVersion_v2))
    except EkcError as problem:
        return {"count": found, "reason": str(problem), "measured": _NOTHING}
    return {
        "count": found,
        "driver": driver,
        "cuda": version_text(cuda),
        "cubins": _cubins(cuda, nvrtc),
        "each": [_one(index, archs) for index in range(found)],
    }


_NOTHING = "no latency and no energy: simulated devices answer; kernels are compiled, and executed on the CPU"


def _cubins(cuda: int, nvrtc: str | None) -> str:
    """Whether the driver takes what NVRTC makes."""
    if nvrtc is None:
        return "none: there is no NVRTC"
    if reason := too_old(cuda, nvrtc):
        return f"the driver is {reason}"
    return f"loads those of NVRTC {nvrtc}"


def _one(index: int, archs: list[str]) -> dict[str, Any]:
    try:
        uuid = uuid_of(index)
        sensors = Sensors(uuid)
        seen = observe(sensors)
    except EkcError as problem:
        return {"name": f"GPU {index}", "measured": f"nothing: {problem}"}
    shared = sensors.shared()
    return {
        "name": sensors.name,
        "uuid": uuid,
        "arch": _arch(sensors, archs),
        "counter": _counter(seen, sensors),
        "power": _power(seen, sensors),
        "cap": _cap(sensors),
        "mig": shared or "off",
        "clocks": _clocks(sensors),
        "measured": _measured(seen, shared),
    }


def _arch(sensors: Sensors, archs: list[str]) -> str:
    asking = sensors.library.nvmlDeviceGetCudaComputeCapability
    try:
        major, minor = explained("the compute capability", asking, sensors.handle)
    except EkcError as problem:
        return f"not told ({problem})"
    name = f"sm_{major}{minor}"
    if name in archs:
        return target_of(10 * major + minor)
    same = [arch for arch in archs if arch.startswith(f"sm_{major}") and len(arch) == len(name)]
    return f"{name}, which NVRTC does not know" + (f"; {same[-1]} is compiled for" if same else "")


def _counter(seen: Behaviour, sensors: Sensors) -> str:
    if not seen.counter:
        return f"none ({sensors.problem or 'not told'})"
    if seen.tick_s is None:
        return "stands still"
    return f"moves every {1000 * seen.tick_s:.0f} ms"


def _power(seen: Behaviour, sensors: Sensors) -> str:
    watts = sensors.power_w()
    if watts != watts:
        return f"not told ({sensors.problem})"
    kind = "instantaneous" if seen.instantaneous or not seen.averaging_s else "a mean"
    field = "field 186" if seen.instantaneous else "no field 186"
    over = f" over {seen.averaging_s:.0f} s" if seen.averaging_s else ""
    often = f", new every {1000 * seen.refresh_s:.0f} ms" if seen.refresh_s else ", did not change"
    looks = f", {seen.part_time}" if seen.part_time else ""
    return f"{watts:.0f} W now; {kind}{over} ({field}){often}{looks}"


def _cap(sensors: Sensors) -> str:
    cap, reasons = sensors.power_cap_w(), sensors.throttle()
    text = "none told" if cap is None else f"{cap:.0f} W"
    if NOT_TOLD in reasons:
        return f"{text}; what throttles it is not told"
    return f"{text}; throttled now: {', '.join(reasons)}" if reasons else text


def _clocks(sensors: Sensors) -> str:
    """By what clocks can be set; nothing is tried."""
    from ekc.devices.limits import zeusd

    mhz = sensors.clock_mhz()
    now = f"{mhz:.0f} MHz now" if mhz == mhz else f"not told ({sensors.problem})"
    refused = refusal()
    if not refused:
        return f"{now}; this process may set them"
    where = zeusd.address()
    if where is not None:
        return f"{now}; {refused}, but zeusd at {where} may set them"
    return f"{now}; cannot be set: {refused}, and no zeusd runs"


def _measured(seen: Behaviour, shared: str) -> str:
    if shared:
        return f"latency; no energy: {shared}"
    if seen.counter and seen.tick_s is not None:
        return f"latency; energy by the counter, {1 / seen.tick_s:.0f} ticks a second"
    if seen.refresh_s is not None:
        return "latency; energy by readings of power alone, with a wider interval"
    return "latency; no energy: neither counter nor power moves"
