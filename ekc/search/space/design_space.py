"""`ekc.space`: the structures of an operator to look at: rules, holes, counts, neighbours, a landscape."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc import devices
from ekc.argument_checks import format_value
from ekc.devices.device import Device
from ekc.display import format_html_table, format_line, shorten
from ekc.errors import InvalidInput
from ekc.ir.drawing.svg import SvgText
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.ir.validate import check_int
from ekc.search.data.options import check_operator
from ekc.search.data.population import Population
from ekc.search.sketches.rules import Rule
from ekc.search.space.landscape import draw_landscape
from ekc.search.space.space import Space
from ekc.search.space.space_structure import SpaceStructure, describe_structure
from ekc.search.space.user_structures import make_user_space
from ekc.tables import TABLE_WIDTH, count_nouns, format_rounded, format_table

SHARE_SAMPLE = 1000
"""Combinations of a structure that the share of legal ones is estimated from."""
MAX_SAMPLE = 10_000
"""Most schedules of one sample."""
HEADERS = ("structure", "rules", "holes", "combinations", "legal")


def space(op: Operator, target: str = "auto", space: Any = None) -> DesignSpace:
    """The schedules that `ekc.tune` searches for an operator, as structures with open numbers.

    >>> print(ekc.space(ekc.matmul(512, 512, 512), target="a100"))

    target: as of `ekc.tune`; limits of the device decide which structures and schedules are legal. space: a
    space of your own, as of `ekc.tune`, to look at before it is searched. Raises `InvalidInput` for a space
    that cannot be searched, and `DeviceError` for the target.
    """
    check_operator(op)
    device = devices.open(target)
    limits = device.limits
    made = Space(op, limits) if space is None else make_user_space(op, limits, space)
    return DesignSpace(op, device, made)


@dataclass(frozen=True, eq=False, repr=False)
class DesignSpace:
    """The schedules of an operator on a device: structures, and the values of the numbers that they leave
    open."""

    op: Operator
    device: Device
    genomes: Space

    @cached_property
    def structures(self) -> tuple[SpaceStructure, ...]:
        """The structures, in the order in which they were derived or written."""
        return tuple(map(describe_structure, self.genomes.structures))

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that any structure comes from, in their order; none where a user wrote them all."""
        return tuple(sorted({rule for s in self.structures for rule in s.rules}))

    @property
    def holes(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Name of a hole -> its values, each a tuple of numbers."""
        return {name: values for s in self.structures for name, values in s.holes.items()}

    @property
    def counts(self) -> dict[str, int]:
        """Name of a structure -> ways to fill its holes, legal or not."""
        return {s.name: s.combinations for s in self.structures}

    @cached_property
    def legal_shares(self) -> dict[str, float]:
        """Name of a structure -> share of its combinations that is legal, from 0 to 1: an estimate from
        `SHARE_SAMPLE` random ones, the same each time."""
        random = np.random.default_rng(0)
        drawn = [self.genomes.sample_uniformly(random, n, SHARE_SAMPLE) for n in range(len(self.structures))]
        legal = [float(self.genomes.find_legal(one).mean()) for one in drawn]
        return dict(zip(self.counts, legal, strict=True))

    def sample(self, count: int, seed: int = 0) -> tuple[Schedule, ...]:
        """Legal schedules at random, each once: drawn as a search draws them, and repaired. Fewer than
        `count` where the space has no more. Raises `InvalidInput`."""
        drawn = self._draw_genomes(count, seed)
        return tuple(self.genomes.build_schedule(drawn, row) for row in range(len(drawn)))

    def _draw_genomes(self, count: int, seed: int) -> Population:
        """`count` legal genomes at random, each once, or fewer."""
        check_int("count", count, MAX_SAMPLE)
        random = np.random.default_rng(check_int("seed", seed, 2**63 - 1, minimum=0))
        found = self.genomes.sample(random, 0)
        # A space with few schedules would be drawn for ever.
        for _ in range(8):
            drawn, _ = self.genomes.repair(random, self.genomes.sample(random, 2 * count))
            both = found + drawn
            found = both[np.sort(np.unique(self.genomes.compute_keys(both), return_index=True)[1])]
            if len(found) >= count:
                break
        return found[:count]

    def find_structure(self, schedule: Schedule) -> str:
        """Name of the structure that makes a schedule of the space. Raises `InvalidInput` for another."""
        return self.genomes.get_structure_name(self._locate(schedule), 0)

    def find_values(self, schedule: Schedule) -> dict[str, tuple[int, ...]]:
        """Name of a hole -> its numbers in a schedule of the space. Raises `InvalidInput` for another."""
        genome = self._locate(schedule)
        numbers = self.genomes.get_hole_values(genome, 0)
        structure = self.genomes.structures[int(genome.structure[0])]
        return {d.name: tuple(numbers[hole] for hole in d.holes) for d in structure.decisions}

    def neighbours(self, schedule: Schedule) -> tuple[Schedule, ...]:
        """The legal schedules one decision away: with one number at its next smaller or larger value, or with
        a factor moved from one loop of a tile to another. Raises `InvalidInput` for a schedule that is not of
        the space."""
        near = self.genomes.list_neighbours(self._locate(schedule), 0)
        rows = np.flatnonzero(self.genomes.find_legal(near))
        return tuple(self.genomes.build_schedule(near, int(row)) for row in rows)

    def estimate(self, schedules: Sequence[Schedule]) -> tuple[tuple[float, float], ...]:
        """(seconds, joules) of one call of each schedule of the space, estimated from its loops alone, by
        the prior of the device; a search corrects it by the boosted model. Nothing is compiled. Raises
        `InvalidInput`."""
        genomes = [self._locate(schedule) for schedule in schedules]
        if not genomes:
            return ()
        latency_s, energy_j = self._price(sum(genomes[1:], genomes[0]))
        return tuple(zip(latency_s.tolist(), energy_j.tolist(), strict=True))

    def _price(self, population: Population) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Estimated seconds and joules of genomes."""
        prior = self.device.prior(self.genomes.compute_quantities(population))
        return prior.latency_s, prior.latency_s * prior.power_w

    def _locate(self, schedule: Schedule) -> Population:
        """The genome of a schedule. Raises `InvalidInput`."""
        if not isinstance(schedule, Schedule):
            raise InvalidInput(
                f"{format_value(schedule)} is not a schedule; sample(1)[0] is one of this space"
            )
        if schedule.op != self.op:
            raise InvalidInput(
                f"a schedule of {shorten(schedule.op.name)} is not in a space of {shorten(self.op.name)}; "
                "sample(1)[0] is one of this space"
            )
        found = self.genomes.locate(schedule)
        if found is None:
            raise InvalidInput(
                f"schedule {schedule.digest} is not in this space: no values of the holes make its steps; "
                "sample(1)[0] is one that is"
            )
        return found

    def draw(self, count: int = 1000, seed: int = 0) -> SvgText:
        """The landscape as SVG text: estimated latency and energy of legal schedules at random, colored by
        structure. A notebook shows it as a picture. Raises `InvalidInput`."""
        drawn = self._draw_genomes(count, seed)
        names = [s.name for s in self.structures]
        title = f"{shorten(self.op.name)} on {self.device.label}: {count_nouns(len(drawn), 'legal schedule')}"
        return draw_landscape(
            title, str(self.op).partition("\n")[0], names, drawn.structure, *self._price(drawn)
        )

    def list_rows(self) -> list[tuple[str, ...]]:
        """A row for each structure: name, numbers of its rules, holes, combinations, share that is legal."""
        return [
            (
                s.name,
                " ".join(str(rule.number) for rule in s.rules) or "yours",
                str(len(s.holes)),
                _format_count(s.combinations),
                _format_share(self.legal_shares[s.name]),
            )
            for s in self.structures
        ]

    def to_json(self) -> dict[str, Any]:
        """One JSON object: structures with their rules, counts and steps, and the values of the holes."""
        return {
            "operator": self.op.to_json(),
            "device": {"name": self.device.name, "simulated": self.device.simulated},
            "own": bool(self.genomes.origin),
            "rules": [vars(rule) for rule in self.rules],
            "holes": self.holes,
            "structures": [
                {
                    "name": s.name,
                    "rules": [rule.name for rule in s.rules],
                    "steps": [step.to_python().removeprefix(".") for step in s.steps],
                    "holes": list(s.holes),
                    "combinations": s.combinations,
                    "legal_share": self.legal_shares[s.name],
                }
                for s in self.structures
            ],
            "legal_share_sample": SHARE_SAMPLE,
        }

    @property
    def _head(self) -> str:
        total = _format_count(sum(self.counts.values()))
        origin = "written by you" if self.genomes.origin else "derived by rules"
        counts = f"{count_nouns(len(self.structures), 'structure')} {origin}, {total} combinations"
        return f"{shorten(self.op.name)} on {self.device.label}: {counts}"

    @property
    def _note(self) -> str:
        return f"an estimate: the share among {SHARE_SAMPLE:,} random combinations of each structure"

    def __str__(self) -> str:
        table = format_table(HEADERS, self.list_rows(), label_count=2)
        rules = [(f"rule {r.number}", f"{r.name}: {r.effect}") for r in self.rules]
        notes = [
            textwrap.fill(text, TABLE_WIDTH, initial_indent=f"{name:9}", subsequent_indent=" " * 9)
            for name, text in (("legal", self._note), *rules)
        ]
        return "\n".join([self._head, "", table, "", *notes])

    def __repr__(self) -> str:
        return format_line(self, self._head)

    def _repr_html_(self) -> str:
        rules = "; ".join(f"{r.number} {r.name}" for r in self.rules)
        note = f"legal: {self._note}{'. Rules: ' if rules else ''}{rules}"
        return format_html_table(HEADERS, self.list_rows(), self._head, note, label_count=2)


def _format_count(count: int) -> str:
    """A count in full below ten million, else with two digits."""
    return f"{count:,}" if count < 1e7 else f"{count:.1e}"


def _format_share(share: float) -> str:
    """A sampled share in per cent; where none of the sample is legal, the upper end of its 95 % interval."""
    return f"{format_rounded(100 * share, 2)}%" if share else f"<{300 / SHARE_SAMPLE:g}%"
