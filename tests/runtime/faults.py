"""Mistakes in the PTX of a correct kernel: each does one thing wrong, and the machine still runs it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from ekc.codegen.compiled import CompiledKernel

_FMA = re.compile(r"(fma\.rn\.f32\s+%\w+, )(%\w+), (%\w+), ")
_STORE = re.compile(r"(st\.global[\w.]*\s+)\[(%\w+)(?:\+(\d+))?\]")
_BARRIER = re.compile(r"bar\.sync\s+0;")


def _first(pattern: re.Pattern[str], text: str, new: str | Callable[[re.Match[str]], str]) -> str:
    made, found = pattern.subn(new, text, count=1)
    assert found, f"no {pattern.pattern} to spoil"
    return made


def squared(ptx: str) -> str:
    """One multiply-add takes its first factor twice: clean, and wrong."""
    return _first(_FMA, ptx, r"\1\2, \2, ")


def far_store(ptx: str) -> str:
    """One store goes to an address a tensor away."""
    return _first(_STORE, ptx, lambda m: f"{m[1]}[{m[2]}+{int(m[3] or 0) + (1 << 26)}]")


def store_behind(ptx: str) -> str:
    """One store goes to an address behind the output, half way to the next array."""
    return _first(_STORE, ptx, lambda m: f"{m[1]}[{m[2]}+{int(m[3] or 0) + (1 << 19)}]")


def no_barrier(ptx: str) -> str:
    """The first barrier is gone."""
    return _first(_BARRIER, ptx, "")


def no_store(ptx: str) -> str:
    """One store does not happen."""
    return _first(re.compile(r"\n\s*st\.global[^;]*;"), ptx, "")


def other_block(ptx: str) -> str:
    """Blocks use the indices of their mirror image across the diagonal."""
    swapped = ptx.replace("%ctaid.x", "%ctaid.?").replace("%ctaid.y", "%ctaid.x")
    return swapped.replace("%ctaid.?", "%ctaid.y")


def unknown_word(ptx: str) -> str:
    """One instruction that no GPU has."""
    return _first(re.compile(r"fma\.rn\.f32"), ptx, "frob.rn.f32")


def spoiled(kernel: CompiledKernel, fault: Callable[[str], str]) -> CompiledKernel:
    """The kernel with a fault in its PTX."""
    return replace(kernel, ptx=fault(kernel.ptx))
