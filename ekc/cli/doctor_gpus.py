"""The GPUs in `ekc doctor`: the measurements that each allows, and the reasons for those that are missing."""

from __future__ import annotations

from typing import Any

from ekc.devices.cuda.driver import explain_old_driver, format_cuda_version
from ekc.devices.device import UNREPORTED
from ekc.devices.nvml.library import call_nvml, explain_refusal, find_uuid, load_nvml
from ekc.devices.nvml.sensors import GpuSensors, SensorBehaviour, observe_sensors
from ekc.errors import EkcError
from ekc.ir.hardware.target import make_arch


def describe_gpus(nvrtc: str | None, archs: list[str]) -> dict[str, Any]:
    """JSON object of the driver and every GPU. A GPU that fails has an entry with the error."""
    from ekc.devices.nvml import GpuAbsence, count_gpus

    found = count_gpus()
    if isinstance(found, GpuAbsence):
        return {"count": 0, "reason": found.reason, "measured": _NOTHING_MEASURED}
    try:
        library = load_nvml()
        driver = str(call_nvml("the driver's version", library.nvmlSystemGetDriverVersion))
        cuda = int(call_nvml("the driver's CUDA version", library.nvmlSystemGetCudaDriverVersion_v2))
    except EkcError as problem:
        return {"count": found, "reason": str(problem), "measured": _NOTHING_MEASURED}
    return {
        "count": found,
        "driver": driver,
        "cuda": format_cuda_version(cuda),
        "cubins": _describe_cubins(cuda, nvrtc),
        "each": [_describe_gpu(index, archs) for index in range(found)],
    }


_NOTHING_MEASURED = (
    "no latency and no energy: simulated devices answer; kernels are compiled, and executed on the CPU"
)


def _describe_cubins(cuda: int, nvrtc: str | None) -> str:
    """Whether the driver loads the machine code that NVRTC makes, in words."""
    if nvrtc is None:
        return "none: there is no NVRTC"
    if reason := explain_old_driver(cuda, nvrtc):
        return f"the driver is {reason}"
    return f"loads those of NVRTC {nvrtc}"


def _describe_gpu(index: int, archs: list[str]) -> dict[str, Any]:
    try:
        uuid = find_uuid(index)
        sensors = GpuSensors(uuid)
        behaviour = observe_sensors(sensors)
    except EkcError as problem:
        return {"name": f"GPU {index}", "measured": f"nothing: {problem}"}
    shared = sensors.explain_sharing()
    return {
        "name": sensors.name,
        "uuid": uuid,
        "arch": _describe_arch(sensors, archs),
        "counter": _describe_counter(behaviour, sensors),
        "power": _describe_power(behaviour, sensors),
        "cap": _describe_power_cap(sensors),
        "mig": shared or "off",
        "clocks": _describe_clocks(sensors),
        "measured": _describe_measurable(behaviour, shared),
    }


def _describe_arch(sensors: GpuSensors, archs: list[str]) -> str:
    asking = sensors.library.nvmlDeviceGetCudaComputeCapability
    try:
        major, minor = call_nvml("the compute capability", asking, sensors.handle)
    except EkcError as problem:
        return f"unknown ({problem})"
    name = f"sm_{major}{minor}"
    if name in archs:
        return make_arch(10 * major + minor)
    same = [arch for arch in archs if arch.startswith(f"sm_{major}") and len(arch) == len(name)]
    return f"{name}, which NVRTC does not know" + (f"; {same[-1]} is compiled for" if same else "")


def _describe_counter(behaviour: SensorBehaviour, sensors: GpuSensors) -> str:
    if not behaviour.has_counter:
        return f"none ({sensors.last_problem or 'not reported'})"
    if behaviour.tick_interval_s is None:
        return "does not move"
    return f"moves every {1000 * behaviour.tick_interval_s:.0f} ms"


def _describe_power(behaviour: SensorBehaviour, sensors: GpuSensors) -> str:
    watts = sensors.power_w()
    if watts != watts:
        return f"unknown ({sensors.last_problem})"
    kind = "instantaneous" if behaviour.is_instantaneous or not behaviour.averaging_s else "a mean"
    field = "field 186" if behaviour.is_instantaneous else "no field 186"
    over = f" over {behaviour.averaging_s:.0f} s" if behaviour.averaging_s else ""
    interval_s = behaviour.refresh_interval_s
    often = f", new every {1000 * interval_s:.0f} ms" if interval_s else ", did not change"
    looks = f", {behaviour.part_time_note}" if behaviour.part_time_note else ""
    return f"{watts:.0f} W now; {kind}{over} ({field}){often}{looks}"


def _describe_power_cap(sensors: GpuSensors) -> str:
    cap, reasons = sensors.power_cap_w(), sensors.throttle()
    text = "not reported" if cap is None else f"{cap:.0f} W"
    if UNREPORTED in reasons:
        return f"{text}; throttle reasons are not reported"
    return f"{text}; throttled now: {', '.join(reasons)}" if reasons else text


def _describe_clocks(sensors: GpuSensors) -> str:
    """The present clock, and the way in which clocks can be set. No clock is set."""
    from ekc.devices.clocks import zeusd
    from ekc.devices.clocks.daemon.client import find_socket

    mhz = sensors.clock_mhz()
    now = f"{mhz:.0f} MHz now" if mhz == mhz else f"unknown ({sensors.last_problem})"
    refusal = explain_refusal()
    if not refusal:
        return f"{now}; this process may set them"
    path, address = find_socket(), zeusd.find_daemon_address()
    if path is not None:
        return f"{now}; {refusal}, but the daemon of ekc at {path} may set them"
    if address is not None:
        return f"{now}; {refusal}, but zeusd at {address} may set them"
    return f"{now}; cannot be set: {refusal}, and no daemon runs"


def _describe_measurable(behaviour: SensorBehaviour, shared: str) -> str:
    if shared:
        return f"latency; no energy: {shared}"
    if behaviour.has_counter and behaviour.tick_interval_s is not None:
        return f"latency; energy by the counter, {1 / behaviour.tick_interval_s:.0f} ticks a second"
    if behaviour.refresh_interval_s is not None:
        return "latency; energy by readings of power alone, with a wider interval"
    return "latency; no energy: neither counter nor power moves"
