"""Labels and the scopes in which they hold: inlined assembly brings the same label many times."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count

from ekc.emulator.ptx.program import Instruction, KernelText, Operand, Symbol
from ekc.errors import EkcError


@dataclass
class _LabelScope:
    """Where a scope begins, and the own name of each label that it declares."""

    first_instruction: int = 0
    first_table: int = 0
    labels: dict[str, str] = field(default_factory=dict)


class LabelScopes:
    """The labels of one kernel while it is parsed. A branch may stand before its label, so it is told which
    label it means where the scope of the label ends."""

    def __init__(self) -> None:
        self._scopes = [_LabelScope()]
        self._serial = count()

    def open_scope(self, kernel: KernelText) -> None:
        """Begin a scope."""
        self._scopes.append(_LabelScope(len(kernel.code), len(kernel.branch_tables)))

    def declare_label(self, name: str, line: int) -> str:
        """The own name of a label."""
        labels = self._scopes[-1].labels
        if name in labels:
            raise EkcError(f"PTX line {line}: the label {name} stands twice in one scope")
        labels[name] = name if len(self._scopes) == 1 else f"{name}@{next(self._serial)}"
        return labels[name]

    def close_scope(self, kernel: KernelText) -> None:
        """End the innermost scope: what in it still branches to a label of its own gets that one's name."""
        scope = self._scopes.pop()
        if not scope.labels:
            return
        code, tables = kernel.code, kernel.branch_tables
        code[scope.first_instruction :] = [
            _resolve_branch(one, scope.labels) for one in code[scope.first_instruction :]
        ]
        for name in list(tables)[scope.first_table :]:
            tables[name] = tuple(scope.labels.get(target, target) for target in tables[name])


def _resolve_branch(instruction: Instruction, labels: dict[str, str]) -> Instruction:
    if instruction.parts[0] not in ("bra", "brx"):
        return instruction
    return replace(
        instruction, operands=tuple(_resolve_label(operand, labels) for operand in instruction.operands)
    )


def _resolve_label(operand: Operand, labels: dict[str, str]) -> Operand:
    return Symbol(labels.get(operand.name, operand.name)) if isinstance(operand, Symbol) else operand
