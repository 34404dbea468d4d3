"""What loops around a walking copy add to it: a few numbers that are the same for all of its rounds.

What is left of a round without them never changes. It is worked out once and kept in a register; the compiler
would join the two again, and then work out both for each tap of a convolution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ekc.codegen.names import Names
from ekc.ir.access import Access, Guard
from ekc.ir.linear import Linear
from ekc.ir.nodes import Kernel
from ekc.ir.program import Loop

BITS = 32
"""Of a mask."""


@dataclass(frozen=True)
class Around:
    """The loops that each thread runs, but for the one that brings the tiles."""

    extents: dict[str, int]
    names: Names

    @classmethod
    def of(cls, kernel: Kernel, loop: Loop, names: Names) -> Around:
        """Those around `loop`; `names` are those that rounds are told by."""
        own = {x.name: int(x.extent) for x in kernel.nest.loops if x.is_serial and x.name != loop.name}
        return cls(own, names)

    def offset(self, source: Access) -> tuple[str, str] | None:
        """Elements from the start of a tensor: what never changes of them, and what the loops add.

        ((..n_p_q..) + r) * 3584   ->   (..n_p_q..) * 3584, r * 3584
        """
        adding = self._adding(source.address)
        if not adding or self._turning(source.address) or self.names.far_offset(source):
            return None
        still = replace(self.names, zero=self.names.zero | dict(adding).keys())
        return still.offset(source), self.names.linear(Linear(adding))

    def condition(self, guards: tuple[Guard, ...]) -> tuple[str, str] | None:
        """A mask with a bit for each turn of the loops that leads outside, and which bits are meant.

        n < 16 && r + P - 1 in 0..13 && s + Q - 1 in 0..13   ->   n < 16 ? .. : ~0u, 1u << r | 1u << (s + 3)
        """
        moved = [(g, self._adding(g.form)) for g in guards if self._adding(g.form)]
        counts = [self.extents[name] for _, adding in moved for name, _ in adding]
        plain = not any(self._turning(g.form) or self.names.leaves_int(g.form) for g in guards)
        alone = all(len(adding) == 1 for _, adding in moved)
        if not moved or not plain or not alone or sum(counts) > BITS or self.names.far:
            return None
        masks, turns, first = [], [], 0
        for (g, ((loop, step),)), count in zip(moved, counts, strict=True):
            left = Linear(tuple(t for t in g.form.terms if t[0] != loop), g.form.const)
            mask = f"turns_outside<{count}, {step}>({self.names.linear(left)}, {g.extent})"
            masks.append(f"{mask} << {first}" if first else mask)
            turns.append(f"1u << ({self.names[loop]} + {first})" if first else f"1u << {self.names[loop]}")
            first += count
        still = self.names.condition(tuple(g for g in guards if not self._adding(g.form)))
        mask = " | ".join(masks)
        return f"{still} ? {mask} : ~0u" if still else mask, " | ".join(turns)

    def _turning(self, form: Linear) -> bool:
        """Whether some of the loops are in a quotient or remainder."""
        return any(not isinstance(a, str) and a.variables() & self.extents.keys() for a, _ in form.terms)

    def _adding(self, form: Linear) -> tuple[tuple[str, int], ...]:
        """The terms of a form that are loops around."""
        return tuple((a, int(c)) for a, c in form.terms if isinstance(a, str) and a in self.extents)


def kept(number: str) -> str:
    """A number that stays in a register."""
    return f"kept({number})"


def kept_place(element: str) -> str:
    """The place of an element of a shared tile, likewise."""
    return kept(f"shared_place(&{element})")
