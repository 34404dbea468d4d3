"""Reads the operands of a statement, names resolved in the scopes that inline assembly opens."""

from __future__ import annotations

from ekc.emulator.program import Address, Immediate, KernelText, Operand, Pair, Register, Symbol, Vector
from ekc.emulator.reader import Reader, number_of
from ekc.emulator.tokens import Token
from ekc.errors import EkcError


class Operands(Reader):
    """A reader that knows the registers of the kernel it is in."""

    def __init__(self, stream: list[Token]) -> None:
        super().__init__(stream)
        self.scopes: list[dict[str, str]] = []
        self.kernel = KernelText("")

    def resolve(self, name: str) -> str:
        """The register that a name means here."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    def operand(self) -> Operand:
        """One operand."""
        one = self.simple()
        if self.accept("|"):
            return Pair(one, self.simple())
        return one

    def simple(self) -> Operand:
        """One operand without the `|` of pairs."""
        if self.at < len(self.stream) and self.stream[self.at].kind == "mark":
            return self._marked()
        return self._named_or_number()

    def _marked(self) -> Operand:
        """One that begins with a mark."""
        if self.accept("{"):
            items = [self.simple()]
            while self.accept(","):
                items.append(self.simple())
            self.take("}")
            return Vector(tuple(items))
        if self.accept("["):
            return self.address()
        if self.accept("("):
            items = []
            while not self.accept(")"):
                items.append(self.simple())
                self.accept(",")
            return Vector(tuple(items))
        negated = bool(self.accept("!"))
        return self._named_or_number(negated, -1 if self.accept("-") else 1)

    def _named_or_number(self, negated: bool = False, sign: int = 1) -> Operand:
        token = self.stream[self.at] if self.at < len(self.stream) else None
        word = self.take()
        if token is not None and token.kind == "number":
            return Immediate(sign * number_of(word, token.line))
        if token is None or token.kind != "word":
            raise EkcError(f"PTX line {self.line()}: {word!r} cannot be an operand")
        return self.named(self.resolve(word), negated)

    def named(self, name: str, negated: bool) -> Operand:
        """A register, or a symbol with its offset."""
        if name == "_" or name in self.kernel.registers:
            return Register(name, negated)
        offset = self.number() if self.accept("+") else 0
        return Symbol(name, offset)

    def address(self) -> Address:
        """What stands between brackets."""
        base = self.simple()
        if not isinstance(base, Register | Symbol | Immediate):
            raise EkcError(f"PTX line {self.line()}: this address is not supported")
        offset = 0
        while self.peek() in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            offset += sign * self.number()
        self.take("]")
        if isinstance(base, Symbol) and base.offset:
            base, offset = Symbol(base.name), offset + base.offset
        return Address(base, offset)
