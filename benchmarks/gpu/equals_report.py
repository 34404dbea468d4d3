"""Report on a rotation of equally fast kernels: verdicts with intervals, and the saving that it can find."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common.script import Column, format_lines
from benchmarks.gpu.contenders import (
    CONFIDENCE,
    DETECTION,
    SLICE_NOISE,
    SLICE_PRICE_S,
    Group,
    compute_findable_saving,
    compute_median,
    count_rounds,
    estimate_slice_noise,
    read_group,
)
from benchmarks.gpu.folder import Folder
from ekc.devices.device import POWER_CAP
from ekc.devices.statistics import Difference
from ekc.tables import format_table

PART = "equals"
CONTROL = "the first again"
"""Name under which the reference of a group runs a second time."""
EQUALLY_FAST = 1.05
"""Sustained time relative to the reference, at most, of a kernel that may replace it."""
POWER_SECONDS = (15.0, 30.0, 45.0, 60.0, 120.0, 240.0)
"""Seconds of a group in the table of what can be found."""
POWER_NOISES = (0.003, SLICE_NOISE, 0.012)
"""Noises of a slice in that table."""
POWER_CONTENDERS = 5
"""Kernels of a group and the control."""


def read_groups(folder: Folder) -> list[Group]:
    """Groups of a folder with their slices, in the order in which they were chosen."""
    chosen = [row for row in folder.list_rows(PART) if "short_s" in row]
    return [read_group(folder, PART, row, row["short_s"]) for row in chosen]


@dataclass(frozen=True)
class Verdict:
    """Verdict on one group of kernels."""

    group: Group
    control: Difference | None
    """Energy of the reference under its second name beside itself."""
    energy: Mapping[str, Difference] = field(default_factory=dict)
    """Energy of the other kernels beside that of the reference, those that are about as fast."""
    latency: Mapping[str, Difference] = field(default_factory=dict)
    """Sustained time of every other kernel beside that of the reference."""
    is_capped: bool = False
    """Whether most slices were throttled by the power cap."""
    noise: float | None = None
    """Relative noise of the energy of a slice."""

    @property
    def saving_kernel(self) -> str | None:
        """The kernel that takes least energy of those that surely take less than the reference."""
        surely = {name: one.ratio for name, one in self.energy.items() if one.interval.high < 1.0}
        return min(surely, key=lambda name: surely[name]) if surely else None

    @property
    def text(self) -> str:
        """The verdict in words."""
        if self.control is None:
            return "too few rounds with energy" if self.latency else "too few rounds"
        if self.control.is_significant:
            return f"not believed: the same kernel twice differs by {self.control}"
        cap = "; at the power cap, energy follows time" if self.is_capped else ""
        if (name := self.saving_kernel) is not None:
            one = self.energy[name]
            saved, least, most = (_percent(1 - x) for x in (one.ratio, one.interval.high, one.interval.low))
            slower = 100 * (self.latency[name].ratio - 1)
            return f"{name} saves {saved} % ({least} to {most}) at {slower:+.1f} % time{cap}"
        if not self.energy:
            return f"no other kernel is as fast when it runs on and on{cap}"
        bound = max(1 - one.interval.low for one in self.energy.values())
        if bound <= 0:
            return f"no saving: every other kernel takes more{cap}"
        return f"no saving found; more than {_percent(bound)} % is ruled out{cap}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def judge_group(group: Group) -> Verdict:
    """The verdict on a group."""
    others = group.kernels[1:]
    latency = {name: one for name in others if (one := group.compare(name, "latency_s"))}
    energy = {
        name: one
        for name, time in latency.items()
        if time.ratio <= EQUALLY_FAST and (one := group.compare(name, "energy_j"))
    }
    slices = [one for taken in group.rounds.values() for one in taken.values()]
    capped = sum(POWER_CAP in one.throttle for one in slices)
    names = (*group.kernels, CONTROL)
    return Verdict(
        group=group,
        control=group.compare(CONTROL, "energy_j"),
        energy=energy,
        latency=latency,
        is_capped=2 * capped > len(slices),
        noise=estimate_slice_noise({name: group.list_slices(name) for name in names}, "energy_j"),
    )


def format_groups(groups: Sequence[Group], label: str) -> str:
    """A table with a line for each group, its verdict below, and how often a kernel differed from itself."""
    verdicts = [judge_group(group) for group in groups]
    title = f"equals: on {label}; kernels about as fast as each other, in rotation on a hot board"
    lines = [
        format_lines(COLUMNS, map(_make_line, verdicts), title),
        f"  intervals are of {CONFIDENCE:.0%}; us, W: sustained, of the fastest by a short timing",
        "  most over least: energy; noise: of the energy of a slice; findable: the saving that these rounds "
        f"find in {DETECTION:.0%} of cases",
        "  same twice: energy of that kernel under a second name",
    ]
    lines += [f"  {one.group.name}: {one.text}" for one in verdicts]
    lines += [
        f"  {one.group.name}: {name}: {why}" for one in verdicts for name, why in one.group.problems.items()
    ]
    controls = [one.control for one in verdicts if one.control is not None]
    wrong = sum(one.is_significant for one in controls)
    lines.append(f"  {wrong} of {len(controls)} kernels differ from themselves")
    return "\n".join(lines)


COLUMNS = (
    Column("group", "group"),
    Column("kernels", "kernels"),
    Column("rounds", "rounds"),
    Column("us", "latency_s", ".4g", 1e6),
    Column("W", "power_w", ".4g"),
    Column("most over least", "spread", ".3f"),
    Column("noise", "noise", ".2%"),
    Column("findable", "findable", ".1%"),
    Column("same twice", "control"),
)


def _make_line(verdict: Verdict) -> dict[str, Any]:
    group = verdict.group
    reference = group.list_slices(group.kernels[0])
    ratios = [1.0, *(one.ratio for one in verdict.energy.values())]
    rounds = sum(math.isfinite(one.latency_s) for one in reference)
    return {
        "group": group.name,
        "kernels": len(group.kernels),
        "rounds": rounds,
        "latency_s": compute_median(one.latency_s for one in reference),
        "power_w": compute_median(one.power_w for one in reference),
        "spread": max(ratios) / min(ratios) if verdict.energy else None,
        "noise": verdict.noise,
        "findable": verdict.noise and compute_findable_saving(verdict.noise, rounds),
        "control": verdict.control,
    }


def format_power(contenders: int = POWER_CONTENDERS) -> str:
    """The table of the savings that a rotation finds, by its seconds and the noise of a slice; computed, not
    measured."""
    rows = []
    for seconds in POWER_SECONDS:
        rounds = count_rounds(seconds, contenders)
        found = [compute_findable_saving(noise, rounds) for noise in POWER_NOISES]
        shares = ["-" if one is None else f"{one:.2%}" for one in found]
        rows.append((f"{seconds:.0f}", str(rounds), *shares))
    heads = ("seconds", "rounds", *(f"noise {noise:.2%}" for noise in POWER_NOISES))
    title = (
        f"saving that a group of {contenders} kernels finds in {DETECTION:.0%} of cases, at {CONFIDENCE:.0%} "
        "confidence"
    )
    legend = (
        f"  noise: of the energy of a slice; {SLICE_NOISE:.2%} is expected of an H100. A slice takes "
        f"{SLICE_PRICE_S} s, the first round warms up."
    )
    return f"{format_table(heads, rows, title)}\n{legend}"
