"""What loops around a walking copy add to it: a few numbers that are the same for all of its rounds.

What is left of a round without them never changes. It is worked out once and kept in a register; the compiler
would join the two again, and then work out both for each tap of a convolution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ekc.codegen.names import CNames
from ekc.ir.affine import AffineForm
from ekc.ir.lowering.buffers import BoundsGuard, TensorAccess
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.program import Loop

MASK_BITS = 32
"""Of a mask."""


@dataclass(frozen=True)
class OuterLoopOffsets:
    """The loops that each thread runs, but for the one that brings the tiles."""

    extents: dict[str, int]
    names: CNames

    @classmethod
    def for_loop(cls, kernel: LaunchTree, loop: Loop, names: CNames) -> OuterLoopOffsets:
        """Those around `loop`; `names` are those that rounds are told by."""
        own = {x.name: int(x.extent) for x in kernel.nest.loops if x.is_serial and x.name != loop.name}
        return cls(own, names)

    def split_offset(self, source: TensorAccess) -> tuple[str, str] | None:
        """Elements from the start of a tensor: what never changes of them, and what the loops add.

        ((..n_p_q..) + r) * 3584   ->   (..n_p_q..) * 3584, r * 3584
        """
        adding = self._find_loop_terms(source.address)
        if not adding or self._has_loop_in_quotient(source.address) or self.names.offset_overflows(source):
            return None
        still = replace(self.names, zero=self.names.zero | dict(adding).keys())
        return still.format_offset(source), self.names.format_linear(AffineForm(adding))

    def split_condition(self, guards: tuple[BoundsGuard, ...]) -> tuple[str, str] | None:
        """A mask with a bit for each turn of the loops that leads outside, and which bits are meant.

        n < 16 && r + P - 1 in 0..13 && s + Q - 1 in 0..13   ->   n < 16 ? .. : ~0u, 1u << r | 1u << (s + 3)
        """
        moved = [(g, self._find_loop_terms(g.form)) for g in guards if self._find_loop_terms(g.form)]
        counts = [self.extents[name] for _, adding in moved for name, _ in adding]
        plain = not any(
            self._has_loop_in_quotient(g.form) or self.names.form_overflows(g.form) for g in guards
        )
        alone = all(len(adding) == 1 for _, adding in moved)
        if not moved or not plain or not alone or sum(counts) > MASK_BITS or self.names.divides_wide:
            return None
        masks, turns, first = [], [], 0
        for (g, ((loop, step),)), count in zip(moved, counts, strict=True):
            left = AffineForm(tuple(t for t in g.form.terms if t[0] != loop), g.form.const)
            mask = f"turns_outside<{count}, {step}>({self.names.format_linear(left)}, {g.extent})"
            masks.append(f"{mask} << {first}" if first else mask)
            turns.append(f"1u << ({self.names[loop]} + {first})" if first else f"1u << {self.names[loop]}")
            first += count
        still = self.names.format_condition(tuple(g for g in guards if not self._find_loop_terms(g.form)))
        mask = " | ".join(masks)
        return f"{still} ? {mask} : ~0u" if still else mask, " | ".join(turns)

    def _has_loop_in_quotient(self, form: AffineForm) -> bool:
        """Whether some of the loops are in a quotient or remainder."""
        return any(not isinstance(a, str) and a.find_variables() & self.extents.keys() for a, _ in form.terms)

    def _find_loop_terms(self, form: AffineForm) -> tuple[tuple[str, int], ...]:
        """The terms of a form that are loops around."""
        return tuple((a, int(c)) for a, c in form.terms if isinstance(a, str) and a in self.extents)


def keep_in_register(number: str) -> str:
    """A number that stays in a register."""
    return f"kept({number})"


def keep_address_in_register(element: str) -> str:
    """The place of an element of a shared tile, likewise."""
    return keep_in_register(f"shared_place(&{element})")
