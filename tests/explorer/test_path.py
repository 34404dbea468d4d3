"""The path of moves: undo, redo, taking a move out, and the files that are saved."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import ekc
from ekc.errors import InvalidInput, ScheduleError
from ekc.explorer.path import Move, SchedulePath, make_move
from ekc.ir.schedule import CacheRead, Split
from ekc.ir.schedule.naive import make_naive_schedule

NAIVE = make_naive_schedule(ekc.matmul(64, 64, 64))


def make_path() -> SchedulePath:
    return SchedulePath.from_schedule(NAIVE).take(make_move(Split("k", (16,))))


def test_path_of_a_schedule_has_a_move_for_each_step() -> None:
    path = SchedulePath.from_schedule(NAIVE)
    assert path.schedule == NAIVE
    assert [m.text for m in path.moves][:2] == ['split("i", (16,))', 'split("j", (16,))']


def test_undo_and_redo_restore() -> None:
    path = make_path()
    back = path.undo().undo()
    assert back.schedule.digest == ekc.Schedule(NAIVE.op).apply_steps(*NAIVE.steps[:-1]).digest
    assert back.redo().redo() == path
    assert path.go_back(0).schedule.steps == ()
    with pytest.raises(InvalidInput, match="nothing was undone"):
        path.redo()
    with pytest.raises(InvalidInput, match="the path has 0 moves"):
        path.go_back(0).undo()


def test_undone_moves_are_taken_again_after_another_move() -> None:
    path = make_path().go_back(2).take(make_move(Split("k", (8,))))
    with pytest.raises(ScheduleError, match="no loop 'k'"):
        path.redo()
    assert path.drop_undone().redo().moves[-1].text == 'bind("i.0", "block.x")'


def test_move_is_taken_out_where_the_later_ones_allow_it() -> None:
    path = make_path()
    number = next(n for n, m in enumerate(path.moves) if m.text == 'cache_write("C")')
    without = path.remove(number)
    assert [m.text for m in without.moves] == [m.text for m in path.moves if m is not path.moves[number]]
    with pytest.raises(ScheduleError, match=r"no loop 'i\.0'"):
        path.remove(0)


def test_saved_python_replays_to_the_same_digest() -> None:
    path = make_path().take(make_move(CacheRead("A", "shared", "k.0", pad=4)))
    text = path.to_python(("", "518 us"))
    assert '.split("j", (16,))  # 518 us' in text
    values: dict[str, object] = {}
    exec(text, values)
    assert values["schedule"] == path.schedule


def test_saved_json_holds_the_schedule_and_the_moves() -> None:
    path = make_path()
    data = json.loads(path.to_json([{"latency_s": 1.0}]))
    assert ekc.Schedule.from_json(json.dumps(data["schedule"])) == path.schedule
    assert data["moves"][0]["latency_s"] == 1.0
    assert [m["digest"] for m in data["moves"]] == [s.digest for s in path.schedules[1:]]


def test_jump_goes_to_another_schedule() -> None:
    other = ekc.Schedule(NAIVE.op).split("i", (4,)).split("k", (16,))
    path = make_path().take(Move("winner", other.steps, is_jump=True))
    assert path.schedule == other
    assert path.undo().redo().schedule == other
    number = len(make_path().moves)
    assert path.take(make_move(Split("k.1", (4,)))).undo().remove(number) == replace(
        make_path(), undone=(make_move(Split("k.1", (4,))),)
    )
