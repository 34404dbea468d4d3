"""Boards of a record file: which devices it has figures of, which a target names, their architecture."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from ekc import devices
from ekc.codegen.generate import describe_toolchain
from ekc.codegen.library.kernels import TargetBoard
from ekc.devices.device import Device
from ekc.devices.simulated.specs import list_names
from ekc.errors import InvalidInput
from ekc.search.database.conditions import RecordConditions, get_present_conditions, sort_by_nearness


def match_board(device: str, board: str) -> int:
    """Count the letters and digits of `device` where they occur in the name of a board as whole words; 0
    where they do not. `h100` is in `NVIDIA H100 80GB HBM3`, `a100` is not in `NVIDIA A1000`. The generated
    library has the same rule."""
    wanted = [c for c in device.lower() if _is_alnum(c)]
    text = board.lower()
    for start in range(len(text)):
        if not wanted or not _is_boundary(text, start):
            continue
        position, matched = start, 0
        while position < len(text) and matched < len(wanted):
            if _is_alnum(text[position]):
                if text[position] != wanted[matched]:
                    break
                matched += 1
            elif not matched:
                break
            position += 1
        if matched == len(wanted) and _is_boundary(text, position):
            return matched
    return 0


def _is_alnum(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _is_boundary(text: str, position: int) -> bool:
    """Whether a word may begin or end before a position: at the ends, beside what is neither letter nor
    digit, and between a letter and a digit. "A100X" is another board than "A100"."""
    if position in (0, len(text)):
        return True
    before, after = text[position - 1], text[position]
    return not (_is_alnum(before) and _is_alnum(after)) or (before.isalpha() and after.isdigit())


def find_boards(
    conditions: Iterable[RecordConditions], targets: Sequence[str] | None, records: str | Path
) -> tuple[TargetBoard, ...]:
    """Find the boards that targets name, or all of a file: measured ones first, then in the order of targets.

    A target is the name of a simulated device or a part of the name of a real one. Raises `InvalidInput` for
    a target that the file has no measured schedule of, and for a real board of unknown architecture.
    """
    present = list(dict.fromkeys((c.device, c.simulated) for c in conditions))
    if not present:
        raise InvalidInput(f"{records}: nothing was measured in it; run ekc tune with --records")
    found: dict[tuple[str, bool], TargetBoard] = {}
    for target in targets if targets is not None else [name for name, _ in present]:
        named = [(n, s) for n, s in present if n == target or (not s and match_board(target, n))]
        if not named:
            raise InvalidInput(_describe_missing(target, [n for n, _ in present], records))
        for name, simulated in named:
            model = open_model(name)
            sms = model.limits.sms if simulated else 0
            found[name, simulated] = TargetBoard(name, model.arch, simulated, sms)
    return tuple(sorted(found.values(), key=lambda board: board.is_simulated))


def _describe_missing(target: str, names: Sequence[str], records: str | Path) -> str:
    near = difflib.get_close_matches(target.lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"--targets: {records} has no measured schedule on {target!r:.60}, only on "
        f"{', '.join(sorted(names))}{hint} (ekc tune --target {target} --records {records} adds one)"
    )


def open_model(name: str) -> Device:
    """Open the simulated device of a board: it has the architecture and the limits of the real one. Raises
    `InvalidInput` for a board that no simulated device resembles."""
    lengths = {known: match_board(known, name) for known in list_names()}
    known = max(lengths, key=lambda one: lengths[one])
    if not lengths[known]:
        raise InvalidInput(
            f"--targets: the architecture of {name!r:.60} is unknown; boards are those whose "
            f"name contains one of {', '.join(list_names())}"
        )
    return devices.open(known)


def choose_conditions(
    present: Iterable[RecordConditions], board: TargetBoard, any_toolchain: bool
) -> RecordConditions | None:
    """Choose the conditions whose figures count for a board: the present ones, or with `any_toolchain` the
    nearest. Of a real board any clock, driver and data count, the last measured first. None without any.
    """
    own = [c for c in present if (c.device, c.simulated) == (board.name, board.is_simulated)]
    if not own:
        return None
    if board.is_simulated:
        here = get_present_conditions(open_model(board.name))
        exact = [c for c in own if c == here]
        nearest = sort_by_nearness(own, here)
    else:
        exact = [c for c in own[::-1] if c.nvrtc == describe_toolchain()]
        nearest = own[::-1]
    return next(iter(exact or (nearest if any_toolchain else ())), None)
