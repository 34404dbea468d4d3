"""The data frame of a run: a row for each trial, with the figures and the numbers of its Program."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

import ekc
from ekc.errors import InvalidInput
from ekc.search.data.trial import Trial, Trials, list_decisions
from ekc.search.tuning_result import TuningResult

FIGURES = (
    "structure",
    "round",
    "status",
    "latency_s",
    "power_w",
    "energy_j",
    "metered",
    "clock_mhz",
    "checked",
)


def test_row_has_the_figures_of_its_trial(plain_run: TuningResult) -> None:
    pandas = pytest.importorskip("pandas")
    failed = Trial(plain_run.best.schedule, "lanes", "compile: too many registers", round=3)
    result = replace(plain_run, trials=Trials((*plain_run.trials, failed)))
    table = result.to_dataframe()
    assert len(table) == result.trial_count
    for index, trial in enumerate(result.trials):
        row = table.iloc[index]
        assert row["digest"] == trial.schedule.digest
        for name in FIGURES:
            value = getattr(trial, name)
            assert pandas.isna(row[name]) if value is None else row[name] == value, name
    assert table["simulated"].all()
    assert table["metered"].sum() == result.metered_count
    assert not table.iloc[-1][["latency_s", "energy_j", "power_w"]].notna().any()
    both = table.dropna(subset=["energy_low_j", "energy_high_j"])
    assert len(both)
    assert (both["energy_low_j"] <= both["energy_j"]).all()
    assert (both["energy_j"] <= both["energy_high_j"]).all()


def test_decisions_are_the_numbers_of_the_schedule() -> None:
    schedule = (
        ekc.Schedule(ekc.matmul(64, 64, 64))
        .split("i", (16,))
        .split("k", (8,))
        .reorder("i.0", "j", "k.0", "k.1", "i.1")
        .bind("i.0", "block.x")
        .bind("j", "thread.x")
        .cache_write("C")
        .cache_read("A", "shared", at="k.0", vector=4, pad=2)
        .pipeline("k.0", stages=2)
        .unroll("k.1", factor=4)
    )
    assert list_decisions(schedule.program) == {
        **{"loop.i.0": 4, "loop.j": 64, "loop.k.0": 8, "stages.k.0": 2},
        **{"loop.k.1": 8, "unroll.k.1": 4, "loop.i.1": 16},
        **{"vector.A.shared": 4, "pad.A.shared": 2, "swizzle.A.shared": 1},
    }


def test_missing_pandas_is_named_in_one_line(
    plain_run: TuningResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match=r"^to_dataframe needs pandas: pip install pandas$"):
        plain_run.to_dataframe()
