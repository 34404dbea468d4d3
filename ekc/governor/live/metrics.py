"""Prometheus metrics of governed GPUs, served on a port or written into a file for node_exporter."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import time
from pathlib import Path
from typing import Any

from ekc.errors import InvalidInput
from ekc.governor.accounting import Accounted
from ekc.governor.advise import Advised
from ekc.governor.event_records import (
    Applied,
    Checked,
    Chosen,
    Ended,
    Event,
    Idled,
    Measured,
    Planned,
    Shifted,
    Skipped,
    Started,
)
from ekc.governor.live.job_report import GovernorLog

LOCAL_HOST = "127.0.0.1"
TEXT_SUFFIX = ".prom"
"""End of the names that node_exporter reads."""
WRITE_S = 5.0
"""Least seconds between two writes of the file."""
STATES = ("learning", "searching", "watching", "checking", "idle", "unchanged", "ended", "failed")
"""`unchanged`: a search would not have paid. `failed`: governing ended before the job."""
NAN = float("nan")


def check_target(target: str) -> tuple[str, int] | Path:
    """(address, port) or the file that `--metrics` names. Raises `InvalidInput` for others, and without the
    client library."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise InvalidInput(
            "--metrics needs prometheus_client: pip install 'ekc[metrics]', or leave --metrics out"
        )
    if target.endswith(TEXT_SUFFIX):
        file = Path(target)
        if not os.access(file.absolute().parent, os.W_OK) or file.is_dir():
            raise InvalidInput(f"--metrics {target}: no file can be written there")
        return file
    found = re.fullmatch(r"(?:(?P<host>[^\s/]+):)?(?P<port>\d{1,5})", target)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise InvalidInput(
            f"--metrics {target}: give a port from 1 to 65535 (9464), an address and a port (0.0.0.0:9464), "
            f"or a file that ends in {TEXT_SUFFIX}"
        )
    return (found["host"] or LOCAL_HOST).strip("[]"), int(found["port"])


class GovernorMetrics:
    """Metrics of all governed GPUs or groups, each under the label `gpu`.

    A sample that was not measured yet is NaN. Raises `InvalidInput` where the port cannot be bound.
    """

    def __init__(self, target: str) -> None:
        place = check_target(target)
        import prometheus_client

        self._registry = prometheus_client.CollectorRegistry()
        self._gauges = {
            name: prometheus_client.Gauge(f"ekc_govern_{name}", text, ["gpu"], registry=self._registry)
            for name, text in GAUGES.items()
        }
        self._info = prometheus_client.Gauge(
            "ekc_govern_info", "Constant 1; labels say what governs.", LABELS, registry=self._registry
        )
        self._state = prometheus_client.Enum(
            "ekc_govern_state", "What the governor does.", ["gpu"], states=STATES, registry=self._registry
        )
        self._states: dict[str, str] = {}
        """State of each GPU, or its state before a pause."""
        self._client = prometheus_client
        self._file = place if isinstance(place, Path) else None
        self._written_s = -math.inf
        self._server: Any = None
        if not isinstance(place, Path):
            self._serve(*place)

    def _serve(self, host: str, port: int) -> None:
        try:
            self._server, _ = self._client.start_http_server(port, host, self._registry)
        except OSError as problem:
            raise InvalidInput(f"--metrics {host}:{port}: cannot listen ({problem.strerror})") from None

    def add_event(self, log: GovernorLog, event: Event) -> None:
        """Update the metrics of a GPU by an event."""
        if isinstance(event, Started):
            for gauge in self._gauges.values():
                gauge.labels(log.name).set(NAN)
            labels = log.name, event.objective, str(event.simulated).lower(), event.actuator
            self._info.labels(*labels).set(1)
        for name, value in _read_values(event).items():
            self._gauges[name].labels(log.name).set(value)
        state = self._states.get(log.name, "learning")
        if not isinstance(event, Idled):
            self._states[log.name] = state = find_state(event) or state
        self._state.labels(log.name).state("idle" if isinstance(event, Idled) else state)
        self.write_file(is_due=isinstance(event, Ended))

    def add_samples(self, log: GovernorLog) -> None:
        """Update power and clock by the newest samples."""
        if log.trace:
            _, watts, clock_mhz = log.trace[-1]
            self._gauges["power_watts"].labels(log.name).set(watts)
            self._gauges["sm_clock_hertz"].labels(log.name).set(1e6 * clock_mhz)
        self.write_file()

    def fail(self, log: GovernorLog) -> None:
        """Governing ended before the job."""
        self._state.labels(log.name).state("failed")
        self.write_file(is_due=True)

    def write_file(self, is_due: bool = False) -> None:
        """Write the file, if there is one and the last writing was `WRITE_S` ago or it `is_due`. Raises
        `OSError`."""
        if self._file is not None and (is_due or time.monotonic() > self._written_s + WRITE_S):
            self._client.write_to_textfile(str(self._file), self._registry)
            self._written_s = time.monotonic()

    def close(self) -> None:
        """Stop serving; a file stays as it was written last."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


LABELS = ("gpu", "objective", "simulated", "actuator")
GAUGES = {
    "sm_clock_hertz": "SM clock, mean of the last second.",
    "sm_clock_limit_hertz": "Upper limit of the SM clock in force; NaN without one.",
    "power_limit_watts": "Power cap in force; NaN without one.",
    "power_watts": "Power of the board, or of all boards of a group, mean of the last second.",
    "step_seconds": "Time per step or found iteration in the last reading.",
    "step_joules": "Energy per step or found iteration in the last reading.",
    "slowdown_ratio": "Slowdown of the choice, as a share of the default's time per step.",
    "slowdown_low_ratio": "Lower end of its 95 % interval; NaN before a check.",
    "slowdown_high_ratio": "Upper end of its 95 % interval; NaN before a check.",
    "energy_joules": "Energy of the board since the governor began.",
    "saved_joules": "Energy saved net so far, search and checks billed.",
    "saved_low_joules": "Lower end of its 95 % interval.",
    "saved_high_joules": "Upper end of its 95 % interval.",
    "saved_ratio": "Energy saved net, as a share of what the default would have cost.",
}
"""Names without their prefix, and help. Units are those of Prometheus: hertz, watts, joules, seconds."""


def _read_values(event: Event) -> dict[str, float]:
    """Gauges that an event sets."""
    if isinstance(event, Measured):
        period_s = event.reading.pace.period_s
        return {"step_seconds": period_s, "step_joules": period_s * event.reading.watts}
    if isinstance(event, Applied):
        limits = event.settings.sm_mhz, event.settings.power_w
        clock_mhz, watts = (NAN if x is None else float(x) for x in limits)
        return {"sm_clock_limit_hertz": 1e6 * clock_mhz, "power_limit_watts": watts}
    if isinstance(event, Chosen | Planned):
        interval = {"slowdown_low_ratio": NAN, "slowdown_high_ratio": NAN}
        return {"slowdown_ratio": event.slowdown, **interval}
    if isinstance(event, Checked):
        low, high = event.slowdown - event.half_width, event.slowdown + event.half_width
        return {"slowdown_ratio": event.slowdown, "slowdown_low_ratio": low, "slowdown_high_ratio": high}
    if isinstance(event, Accounted):
        low, high = event.saved_j - event.half_width_j, event.saved_j + event.half_width_j
        return {
            "energy_joules": event.joules,
            "saved_joules": event.saved_j,
            "saved_low_joules": low,
            "saved_high_joules": high,
            "saved_ratio": event.saved_share,
        }
    return {"energy_joules": event.joules} if isinstance(event, Ended) else {}


def find_state(event: Event) -> str | None:
    """State of the governor after an event; None where the event leaves it as it was."""
    if isinstance(event, Applied):
        if event.why == "candidate":
            return "searching"
        return "watching" if event.why.startswith(("the choice", "the check moved")) else None
    if isinstance(event, Measured):
        return "checking" if event.purpose == "check" else None
    states: dict[type[Event], str] = {
        Started: "learning",
        Shifted: "learning",
        Chosen: "watching",
        Planned: "watching",
        Advised: "watching",
        Skipped: "unchanged",
        Ended: "ended",
    }
    return states.get(type(event))
