"""The part `tune`: order and time of searches, searches that were killed, verdicts on planted figures."""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import tune
from benchmarks.gpu.contenders import Slice
from benchmarks.gpu.folder import TUNING, Folder
from benchmarks.gpu.items import Item, make_matmul
from benchmarks.gpu.kit import Budget, Kit
from benchmarks.gpu.prices import PricedDevice, VirtualClock
from ekc import devices
from ekc.devices.simulated.specs import H100
from ekc.search.data.events import TuningEvent
from ekc.search.database.database import RecordStore

SMALL = make_matmul(16, 16, 16, "float32")


def test_nine_minutes_hold_the_first_operator_with_both_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, searches = [0.0], []

    def search(kit: Kit, pair: tune.Pair, objective: str, seconds: float) -> None:
        searches.append((pair.name, objective, seconds))
        clock[0] += seconds + tune.FINALS_S[objective]
        kit.folder.add_row("tune", pair.name_search(objective), "ok", schedule="{}")

    def measure(*_: object) -> dict[str, Any]:
        clock[0] += tune.WINNERS_S
        return {}

    monkeypatch.setattr(tune, "_search", search)
    monkeypatch.setattr(tune, "rotate", measure)
    monkeypatch.setattr(tune, "Ours", lambda *_: None)
    monkeypatch.setattr(tune.Schedule, "from_json", lambda text: None)
    kit: Any = SimpleNamespace(
        folder=Folder(tmp_path, {"device": "x"}),
        dry=False,
        seed=0,
        device=None,
        compile_kernel=lambda _: None,
    )
    tune.run(kit, Budget(540.0, lambda: clock[0]))
    first = "MM 2048^3 float32, seed"
    assert searches == [
        (f"{first} 0", "latency", tune.SEARCH_S),
        (f"{first} 0", "energy", tune.SEARCH_S),
        (f"{first} 1", "energy", tune.SEARCH_S),
        (f"{first} 1", "latency", tune.SEARCH_S),
    ]
    assert clock[0] <= 540.0


@pytest.fixture(name="clock")
def make_clock(tmp_path: Path) -> VirtualClock:
    return VirtualClock(tmp_path / "clock")


@pytest.fixture(name="kit")
def make_kit(tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """A simulated device at the prices of an H100, one small operator, and searches of few trials."""
    monkeypatch.setattr(devices, "open", lambda target="auto": PricedDevice(H100, clock, "tune"))
    monkeypatch.setattr(tune, "list_recorded_items", lambda: (SMALL,))
    monkeypatch.setattr(tune, "SEEDS", (0,))
    monkeypatch.setattr(tune, "TRIALS", 4)
    monkeypatch.setattr(tune, "SEARCH_S", 1000.0)
    return Kit.open("h100", tmp_path / "out", False, 0, False, clock.now)


def test_killed_search_goes_on_and_measures_nothing_twice(
    kit: Kit, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tried, cache = tune.tune, [], os.environ.get("EKC_CACHE_DIR")
    folders: Counter[str] = Counter()

    def interrupted(*arguments: Any, callback: Any, **options: Any) -> Any:
        def watch(event: TuningEvent) -> bool:
            tried.append(event.name)
            if tried.count("trial") == 2:
                raise ZeroDivisionError("as a kill would end it")
            return bool(callback(event))

        return real(*arguments, callback=watch, **options)

    def noted(*arguments: Any, **options: Any) -> Any:
        folders[os.environ["EKC_CACHE_DIR"]] += 1
        return real(*arguments, **options)

    monkeypatch.setattr(tune, "tune", interrupted)
    with pytest.raises(ZeroDivisionError):
        tune.run(kit, Budget(1e6, clock.now))
    (unfinished,) = (tmp_path / "out").glob("search-*.sqlite")
    assert not kit.folder.list_rows("tune")
    monkeypatch.setattr(tune, "tune", noted)
    tune.run(kit, Budget(1e6, clock.now))
    assert list(folders.values()) == [1, 1], "no search finds the kernels of another"
    assert os.environ.get("EKC_CACHE_DIR") == cache
    assert "1 pair: no verdict, one seed shows nothing" in tune.make_table(kit)
    assert not unfinished.exists()
    pair = f"{SMALL.name}, seed 0"
    assert [row["item"] for row in kit.folder.list_rows("tune")] == [
        f"{pair}, latency",
        f"{pair}, energy",
        pair,
    ]
    log = clock.read_log()
    # Trials have the repeat 0, and finals those from 1 on.
    trials = [one for one in log if one[1] == "timing" and one[3] == 0]
    searched = sum(row["trials"] + 1 for row in kit.folder.list_rows("tune") if "trials" in row)
    assert len(trials) == searched
    assert len([one for one in log if one[1] == "slice"]) == 2 * (1 + tune.ROUNDS)
    with RecordStore(tmp_path / "out" / TUNING) as store:
        assert len(list(store.read_rows(kind="timing"))) >= searched
    kit.close()


def make_pair(item: Item, seed: int, energy: float, latency: float = 1.0) -> dict[str, Any]:
    """The row of two winners, that of energy with these figures over those of the other."""
    random = np.random.default_rng(seed)

    def spread(energy_j: float, latency_s: float) -> list[dict[str, Any]]:
        noise = 1 + 0.005 * random.standard_normal((tune.ROUNDS, 2))
        return [Slice(latency_s * t, energy_j * e, 400.0, 1980.0, 50.0, ()).to_json() for e, t in noise]

    slices = {"latency": spread(0.02, 1e-4), "energy": spread(0.02 * energy, 1e-4 * latency)}
    return {"operator": item.name, "seed": seed, "slices": slices}


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ((0.93, 0.932), "), sustained latency +1.0 % ("),
        ((0.95, 0.951), ": the search for energy saves joules"),
        ((1.05, 1.049), ": the search for energy wastes joules"),
        ((1.0, 1.001), ": no difference found; one of "),
        ((0.95, 1.02), ": no difference found; one of "),
        ((0.9,), "1 pair: no verdict, one seed shows nothing of how searches scatter"),
    ],
)
def test_verdicts_are_right_on_planted_ratios(ratios: tuple[float, ...], words: str) -> None:
    text = tune.judge_pairs([make_pair(SMALL, n, ratio, 1.01) for n, ratio in enumerate(ratios)])
    assert words in text


def test_pair_without_energy_has_no_verdict() -> None:
    pair = make_pair(SMALL, 0, math.nan)
    assert tune.judge_pairs([pair, make_pair(SMALL, 1, 0.9)]).startswith(
        "no verdict: a difference of energy_j"
    )
