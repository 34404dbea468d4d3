"""`ekc tune --layers` where not every layer comes to a result: what is done is told, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ekc
from ekc.cli import main
from ekc.errors import DeviceError, NothingLegal
from ekc.search.result import INTERRUPTED, TuningResult

LAYER = '[[layer]]\nname = "{}"\nmodel = "net"\noperator = "matmul"\ncount = {}\nm = {}\nn = 16\nk = 16\n\n'
TUNE = ["tune", "--layers", "net.toml", "--quiet", "--out", "o"]
NOTHING = NothingLegal("matmul on a100: no schedule works")
LOST = DeviceError("the GPU\nis gone")

Outcome = BaseException | Callable[[TuningResult], TuningResult]


def whole(result: TuningResult) -> TuningResult:
    return result


def cut_short(result: TuningResult) -> TuningResult:
    return replace(result, stopped=INTERRUPTED)


@pytest.fixture(scope="module")
def tuned() -> TuningResult:
    return ekc.tune(ekc.matmul(16, 16, 16), target="a100", trials=2, progress=False)


@pytest.fixture
def ends(tuned: TuningResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Three layers of a model, and how the tuning of each ends."""
    monkeypatch.chdir(tmp_path)
    Path("net.toml").write_text(
        "".join(LAYER.format(*x) for x in (("one", 2, 16), ("two", 3, 8), ("six", 1, 4)))
    )

    def ends(*outcomes: Outcome) -> None:
        left = iter(outcomes)

        def tune(*_: object) -> TuningResult:
            outcome = next(left)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome(tuned)

        monkeypatch.setattr("ekc.cli.tune.Options.tune", tune)

    return ends


@pytest.mark.parametrize(
    ("outcomes", "status", "calls", "lacks"),
    [
        ((whole, whole, whole), 0, 6, ""),
        ((whole, NOTHING, whole), 2, 3, ", without two (failed)"),
        ((whole, LOST, whole), 2, 3, ", without two (failed)"),
        ((whole, KeyboardInterrupt()), 130, 2, ", without two (not tuned), six (not tuned)"),
        ((NOTHING, cut_short), 130, 3, ", without one (failed), six (not tuned)"),
        ((whole, whole, cut_short), 130, 6, ""),
    ],
)
def test_the_sum_says_what_it_is_without(
    outcomes: tuple[Outcome, ...],
    status: int,
    calls: int,
    lacks: str,
    ends: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ends(*outcomes)
    assert main(TUNE) == status
    out = capsys.readouterr().out
    (total,) = [line for line in out.splitlines() if line.startswith("net: ")]
    assert total.startswith(f"net: {calls} calls, ")
    assert total.endswith(f" J in sum{lacks}")
    assert f"wrote {sum(callable(x) for x in outcomes)} kernels under o" in out


def test_json_names_what_is_missing(ends: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    ends(whole, LOST, KeyboardInterrupt())
    assert main([*TUNE, "--json"]) == 130
    out, err = capsys.readouterr()
    got = json.loads(out)
    assert [x["name"] for x in got["layers"]] == ["one"]
    assert [(x["name"], x["count"], x["reason"]) for x in got["failed"]] == [
        ("two", 3, "the GPU is gone"),
        ("six", 1, "not tuned"),
    ]
    assert "ekc: layer two: the GPU is gone\n" in err
    assert err.endswith("ekc: interrupted in layer 3 of 3\n")


@pytest.mark.parametrize(
    ("outcomes", "status"), [((NOTHING, LOST, NOTHING), 2), ((KeyboardInterrupt(),), 130)]
)
def test_no_table_of_nothing(
    outcomes: tuple[Outcome, ...], status: int, ends: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    ends(*outcomes)
    assert main(TUNE) == status
    assert capsys.readouterr().out == ""


def test_it_says_how_long_the_rest_may_take(
    ends: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    ends(whole, whole, whole)
    assert main(TUNE) == 0
    first, second, third = capsys.readouterr().err.splitlines()[:3]
    assert first == "layer 1 of 3: one"
    assert second.startswith("layer 2 of 3: two (about 1 min left")
    assert third.startswith("layer 3 of 3: six (about 1 min left")
