"""Rounds of a copy by all threads: what a thread adds to an address, worked out once for all of them."""

from __future__ import annotations

from typing import Any

from ekc.ir.lowering.regions import Region


def unroll_rounds(text: dict[str, Any], region: Region) -> dict[str, Any]:
    """A copy with its rounds all written out, which move the slowest coordinate alone where sizes allow.

    With 32 threads that move 4 elements each into rows of 32::

        element = (round * 32 + thread) * 4        ->   i = thread * 4 / 32 + round * 4
        i = element / 32, k = element % 32              k = thread * 4 % 32

    Of several strips each moves the fastest coordinate too.
    """
    turn, again = split_round_by_strip(text)
    text = text | {"unroll": "", "turn": turn}
    parts = [line.removesuffix(";").split(" = ") for line in text["coordinates"]]
    step = text["threads"] * text["vector"]
    below = int(region.size) // text["strips"] // int(region.segments[0].extent)
    if text["rounds"] > 1 and step % below == 0:
        text["slowest"] = step // below
        at = "thread" if text["vector"] == 1 else f"thread * {text['vector']}"
        parts = [[name, value.replace("element", at)] for name, value in parts]
        if turn:
            parts[0][1] += f" + {turn} * {text['slowest']}"
    if again:
        parts[-1][1] += f" + {again} * {text['strip']}"
    return text | {"coordinates": [f"{name} = {value};" for name, value in parts]}


def split_round_by_strip(text: dict[str, Any]) -> tuple[str, str]:
    """Which round of its strip a round is, and of which strip; nothing where there is but one.

    6 rounds, 2 strips   ->   round % 3, round / 3
    """
    each = text["rounds"] // text["strips"]
    if text["strips"] == 1:
        return "round", ""
    return ("", "round") if each == 1 else (f"round % {each}", f"round / {each}")
