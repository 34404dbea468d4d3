"""Rounds of a copy by all threads: what a thread adds to an address, worked out once for all of them."""

from __future__ import annotations

from typing import Any

from ekc.ir.region import Region


def steady(text: dict[str, Any], region: Region) -> dict[str, Any]:
    """A copy with its rounds all written out, which move the slowest coordinate alone where sizes allow.

    With 32 threads that move 4 elements each into rows of 32::

        element = (round * 32 + thread) * 4        ->   i = thread * 4 / 32 + round * 4
        i = element / 32, k = element % 32              k = thread * 4 % 32
    """
    text = text | {"unroll": ""}
    step = text["threads"] * text["vector"]
    below = int(region.size) // int(region.segments[0].extent)
    if text["rounds"] == 1 or step % below:
        return text
    at = "thread" if text["vector"] == 1 else f"thread * {text['vector']}"
    parts = [line.removesuffix(";").split(" = ") for line in text["coordinates"]]
    lines = [f"{name} = {value.replace('element', at)}" for name, value in parts]
    lines[0] += f" + round * {step // below}"
    return text | {"coordinates": [f"{line};" for line in lines], "slowest": step // below}
