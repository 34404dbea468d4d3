"""Labels and the scopes in which they hold: inlined assembly brings the same label many times."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count

from ekc.emulator.ptx.program import Instruction, KernelText, Operand, Symbol
from ekc.errors import EkcError


@dataclass
class _Scope:
    """Where a scope begins, and the own name of each label that it declares."""

    statement: int = 0
    tables: int = 0
    labels: dict[str, str] = field(default_factory=dict)


class Labels:
    """The labels of one kernel while it is parsed. A branch may stand before its label, so it is told which
    label it means where the scope of the label ends."""

    def __init__(self) -> None:
        self._scopes = [_Scope()]
        self._serial = count()

    def open(self, kernel: KernelText) -> None:
        """Begin a scope."""
        self._scopes.append(_Scope(len(kernel.code), len(kernel.tables)))

    def declare(self, name: str, line: int) -> str:
        """The own name of a label."""
        labels = self._scopes[-1].labels
        if name in labels:
            raise EkcError(f"PTX line {line}: the label {name} stands twice in one scope")
        labels[name] = name if len(self._scopes) == 1 else f"{name}@{next(self._serial)}"
        return labels[name]

    def close(self, kernel: KernelText) -> None:
        """End the innermost scope: what in it still branches to a label of its own gets that one's name."""
        scope = self._scopes.pop()
        if not scope.labels:
            return
        code, tables = kernel.code, kernel.tables
        code[scope.statement :] = [_meant(one, scope.labels) for one in code[scope.statement :]]
        for name in list(tables)[scope.tables :]:
            tables[name] = tuple(scope.labels.get(target, target) for target in tables[name])


def _meant(one: Instruction, labels: dict[str, str]) -> Instruction:
    if one.parts[0] not in ("bra", "brx"):
        return one
    return replace(one, operands=tuple(_named(operand, labels) for operand in one.operands))


def _named(operand: Operand, labels: dict[str, str]) -> Operand:
    return Symbol(labels.get(operand.name, operand.name)) if isinstance(operand, Symbol) else operand
