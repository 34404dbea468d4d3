"""Prometheus metrics of a governed job, as a scraper reads them."""

from __future__ import annotations

import math
import socket
import urllib.request
from pathlib import Path

import pytest

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from ekc.errors import InvalidInput  # noqa: E402
from ekc.governor.accounting import Accounted  # noqa: E402
from ekc.governor.event_records import (  # noqa: E402
    Applied,
    Checked,
    Chosen,
    Ended,
    Event,
    Idled,
    Measured,
    Resumed,
    Shifted,
    Skipped,
    Started,
)
from ekc.governor.live.job_report import GovernorLog  # noqa: E402
from ekc.governor.live.metrics import GAUGES, STATES, GovernorMetrics, check_target  # noqa: E402
from ekc.governor.protocols import Settings  # noqa: E402
from ekc.governor.readings import JobReading, ProgressRate  # noqa: E402

LOW = Settings(sm_mhz=1500)
READING = JobReading(LOW, 60.0, 20.0, 300.0, ProgressRate(beats=0.5, period_s=2.0), 99.0, 40.0, 1490.0)
EVENTS = {
    "learning": Started(0.0, "probe", "NVML, GPU 0", False, "energy"),
    "searching": Applied(30.0, LOW, "candidate"),
    "watching": Chosen(80.0, LOW, 0.04, 0.1, 1, 50.0, 9e3),
    "checking": Measured(300.0, READING, "check", 0.04, 0.1),
}


def parse(text: str) -> dict[str, dict[str, float]]:
    """Values by metric name and by the label `gpu` (and the state, for a state)."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            key = labels.get("ekc_govern_state", labels["gpu"])
            found.setdefault(sample.name, {})[key] = sample.value
    return found


def write(file: Path, *events: Event, log: GovernorLog | None = None) -> dict[str, dict[str, float]]:
    log = log or GovernorLog("GPU 0", False)
    metrics = GovernorMetrics(str(file))
    for event in events:
        metrics.add_event(log, event)
    metrics.add_samples(log)
    metrics.write_file(is_due=True)
    return parse(file.read_text())


def find_state(values: dict[str, dict[str, float]]) -> str:
    (state,) = [name for name, value in values["ekc_govern_state"].items() if value == 1]
    return state


def test_file_holds_every_metric_in_base_units(tmp_path: Path) -> None:
    log = GovernorLog("GPU 0", False, trace=[(301.0, 310.0, 1495.0)])
    checked = Checked(310.0, 0.041, 0.01, 0.1)
    account = Accounted(310.0, 9e4, 1e4, 2e3, 5e2, None)
    values = write(tmp_path / "ekc.prom", *EVENTS.values(), EVENTS["searching"], checked, account, log=log)
    expected = {
        "power_watts": 310.0,
        "sm_clock_hertz": 1.495e9,
        "sm_clock_limit_hertz": 1.5e9,
        "step_seconds": 2.0,
        "step_joules": 600.0,
        "slowdown_ratio": 0.041,
        "slowdown_low_ratio": 0.031,
        "slowdown_high_ratio": 0.051,
        "energy_joules": 9e4,
        "saved_joules": 1e4,
        "saved_low_joules": 8e3,
        "saved_high_joules": 1.2e4,
        "saved_ratio": 0.1,
    }
    assert {name: values[f"ekc_govern_{name}"]["GPU 0"] for name in expected} == pytest.approx(expected)
    assert set(expected) | {"power_limit_watts"} == set(GAUGES)
    assert math.isnan(values["ekc_govern_power_limit_watts"]["GPU 0"])
    assert values["ekc_govern_info"] == {"GPU 0": 1.0}


@pytest.mark.parametrize("state", EVENTS)
def test_state_follows_the_events(state: str, tmp_path: Path) -> None:
    before = list(EVENTS.values())[: list(EVENTS).index(state) + 1]
    assert find_state(write(tmp_path / "a.prom", *before)) == state
    idle = write(tmp_path / "b.prom", *before, Idled(400.0))
    assert find_state(idle) == "idle"
    back = write(tmp_path / "c.prom", *before, Idled(400.0), Resumed(500.0, 100.0))
    assert find_state(back) == state


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (Shifted(9.0, "large", 0.2), "learning"),
        (Skipped(9.0, 60.0, 9.0, 30.0), "unchanged"),
        (Applied(9.0, LOW, "the choice after a check"), "watching"),
        (Ended(9.0, 9.0, 9.0), "ended"),
    ],
)
def test_last_event_decides(event: Event, state: str, tmp_path: Path) -> None:
    assert state in STATES
    assert find_state(write(tmp_path / "a.prom", *EVENTS.values(), event)) == state


def test_what_was_not_measured_is_not_a_number(tmp_path: Path) -> None:
    values = write(tmp_path / "a.prom", EVENTS["learning"])
    assert all(math.isnan(values[f"ekc_govern_{name}"]["GPU 0"]) for name in GAUGES)


def test_gpus_are_apart(tmp_path: Path) -> None:
    metrics = GovernorMetrics(str(tmp_path / "a.prom"))
    for name, watts in (("GPU 0", 100.0), ("GPU 1", 200.0)):
        log = GovernorLog(name, False, trace=[(1.0, watts, 1000.0)])
        metrics.add_event(log, EVENTS["learning"])
        metrics.add_samples(log)
    metrics.fail(log)
    values = parse((tmp_path / "a.prom").read_text())
    assert values["ekc_govern_power_watts"] == {"GPU 0": 100.0, "GPU 1": 200.0}


def find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_port_serves_this_machine_until_it_is_closed() -> None:
    port = find_free_port()
    metrics = GovernorMetrics(str(port))
    metrics.add_event(GovernorLog("GPU 0", False), EVENTS["learning"])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert find_state(parse(answer.read().decode())) == "learning"
    with pytest.raises(InvalidInput, match="cannot listen"):
        GovernorMetrics(str(port))
    metrics.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")


def test_port_is_that_of_this_machine_by_default() -> None:
    assert check_target("9464") == ("127.0.0.1", 9464)
    assert check_target("0.0.0.0:9464") == ("0.0.0.0", 9464)
    assert check_target("[::1]:9464") == ("::1", 9464)


@pytest.mark.parametrize("target", ["0", "65536", "x", "a b:9", "/no/such/folder/a.prom", "a.txt"])
def test_other_targets_are_refused(target: str) -> None:
    with pytest.raises(InvalidInput, match="--metrics"):
        check_target(target)


def test_missing_client_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"pip install 'ekc\[metrics\]'"):
        check_target("9464")
