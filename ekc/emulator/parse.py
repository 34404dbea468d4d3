"""PTX text to a `Module`: declarations, kernels, statements."""

from __future__ import annotations

from collections.abc import Iterable

from ekc.emulator.operands import Operands
from ekc.emulator.program import (
    TYPE_BYTES,
    Instruction,
    KernelText,
    Module,
    Operand,
    Register,
    Variable,
)
from ekc.emulator.reader import number_of, spell
from ekc.emulator.tokens import Token, tokens
from ekc.errors import EkcError

_SPACES = {".global", ".const", ".shared", ".local", ".param", ".reg", ".tex"}
_LINKAGE = {".visible", ".extern", ".weak", ".common"}


def parse(text: str) -> Module:
    """Read a PTX text; `EkcError` with the line for what is malformed or cut off."""
    return _Parser(tokens(text)).module()


class _Parser(Operands):
    """A recursive descent over the tokens."""

    def __init__(self, stream: list[Token]) -> None:
        super().__init__(stream)
        self.source_line: int | None = None

    # -- module ---------------------------------------------------------------------------------
    def module(self) -> Module:
        if ".version" not in [t.text for t in self.stream[:1]]:
            raise EkcError("not PTX: the text does not begin with .version")
        self.take(".version")
        module = Module(self.take(), "")
        while self.peek():
            self.top_level(module)
        if not module.target:
            raise EkcError("PTX without .target: truncated?")
        return module

    def top_level(self, module: Module) -> None:
        word = self.take()
        if word == ".target":
            module.target = self.take()
            while self.accept(","):
                self.take()
        elif word == ".address_size":
            if self.number() != 64:
                raise EkcError(f"PTX line {self.line()}: only 64-bit addresses are emulated")
        elif word in _LINKAGE:
            return
        elif word == ".entry":
            kernel = self.entry()
            module.kernels[kernel.name] = kernel
        elif word == ".func":
            self.skip_function()
        elif word in _SPACES:
            module.variables.extend(self.variables(word[1:]))
        elif word == ".file":
            self.skip_file()
        elif word == ".section":
            self.skip_past("}")
        elif word == ".pragma":
            self.skip_past(";")
        else:
            raise EkcError(f"PTX line {self.line()}: unknown directive {word!r} (PTX {module.version})")

    def skip_file(self) -> None:
        self.take()
        self.take()
        while self.accept(","):
            self.take()

    def skip_function(self) -> None:
        """Functions that are not inlined: a call to one is refused where it stands."""
        while self.peek() not in ("{", ";"):
            self.take()
        if self.take() == ";":
            return
        depth = 1
        while depth:
            word = self.take()
            depth += (word == "{") - (word == "}")

    def entry(self) -> KernelText:
        self.kernel = KernelText(self.take())
        self.source_line = None
        if self.accept("("):
            while not self.accept(")"):
                self.take(".param")
                self.kernel.parameters.extend(self.variables("param", "," if self.peek() != ")" else ")"))
        while self.peek() != "{":
            self.performance(self.take())
        self.take("{")
        self.scopes = []
        self.body()
        return self.kernel

    def performance(self, word: str) -> None:
        """`.maxntid`, `.reqntid` and their kind."""
        if not word.startswith("."):
            raise EkcError(f"PTX line {self.line()}: {word!r} where the body of the kernel was expected")
        total = 1
        while self.peek() and self.peek()[0].isdigit():
            total *= self.number()
            self.accept(",")
        if word in (".maxntid", ".reqntid"):
            self.kernel.max_threads = total

    # -- declarations ---------------------------------------------------------------------------
    def variables(self, space: str, end: str = ";") -> list[Variable]:
        align, kind, found = 0, "", []
        while self.peek().startswith("."):
            word = self.take()
            if word == ".align":
                align = self.number()
            elif word[1:] in TYPE_BYTES:
                kind = word[1:]
            # The rest (.ptr, .global, .v4, ...) says nothing that matters here.
        while True:
            name = self.take()
            count: int | None = 1
            while self.accept("["):
                count = None if self.peek() == "]" else (count or 1) * self.number()
                self.take("]")
            values = tuple(self.initial()) if self.accept("=") else ()
            found.append(
                Variable(name, space, kind or "b8", count, align or TYPE_BYTES[kind or "b8"], values)
            )
            if end != ";":
                self.accept(",")
                return found
            if not self.accept(","):
                break
        self.take(end)
        return found

    def initial(self) -> Iterable[int | float]:
        if not self.accept("{"):
            yield self.value()
            return
        while not self.accept("}"):
            if self.peek() == "{":
                yield from self.initial()
            else:
                yield self.value()
            self.accept(",")

    def value(self) -> int | float:
        sign = -1 if self.accept("-") else 1
        return sign * number_of(self.take(), self.line())

    def registers(self) -> None:
        kind = self.take()[1:]
        if kind not in TYPE_BYTES:
            raise EkcError(f"PTX line {self.line()}: registers of type {kind!r} are unknown")
        while True:
            name = self.take()
            if self.accept("<"):
                names = [f"{name}{i}" for i in range(self.number())]
                self.take(">")
            else:
                names = [name]
            for one in names:
                own = one if len(self.scopes) == 0 else f"{one}@{len(self.kernel.registers)}"
                if self.scopes:
                    self.scopes[-1][one] = own
                self.kernel.registers[own] = kind
            if not self.accept(","):
                break
        self.take(";")

    # -- statements -----------------------------------------------------------------------------
    def body(self) -> None:
        """Statements up to the closing brace; inner braces (inline assembly) open a scope."""
        while True:
            word = self.peek()
            if not word:
                self.take("}")
            elif word == "}":
                self.take()
                if not self.scopes:
                    return
                self.scopes.pop()
            elif word == "{":
                self.take()
                self.scopes.append({})
            elif word == ".reg":
                self.take()
                self.registers()
            elif word in _SPACES:
                self.take()
                self.kernel.variables.extend(self.variables(word[1:]))
            elif word in _LINKAGE:
                self.take()
            elif word == ".loc":
                self.location()
            elif word == ".pragma":
                self.skip_past(";")
            elif word.startswith("."):
                raise EkcError(f"PTX line {self.line()}: unknown directive {word!r}")
            else:
                self.statement()

    def location(self) -> None:
        self.take(".loc")
        self.number()
        self.source_line = self.number()
        self.number()
        while self.accept(","):
            self.skip_inlined()

    def skip_inlined(self) -> None:
        """`, function_name label, inlined_at 1 2 3`."""
        self.take()
        while self.peek() not in (",", ";") and not self.peek().startswith((".", "@", "$")):
            if self.at + 1 < len(self.stream) and self.stream[self.at + 1].line != self.line():
                self.take()
                return
            self.take()

    def statement(self) -> None:
        first, line = self.at, self.line()
        if self.stream[self.at].kind == "word" and self._is_label():
            self.label(self.take())
            return
        guard = None
        if self.accept("@"):
            negated = bool(self.accept("!"))
            guard = Register(self.resolve(self.take()), negated)
        opcode = self.take()
        operands: list[Operand] = []
        while not self.accept(";"):
            operands.append(self.operand())
            if not self.accept(","):
                self.take(";")
                break
        text = spell(self.stream[first : self.at - 1])
        self.kernel.code.append(Instruction(opcode, guard, tuple(operands), line, self.source_line, text))

    def _is_label(self) -> bool:
        return self.at + 1 < len(self.stream) and self.stream[self.at + 1].text == ":"

    def label(self, name: str) -> None:
        self.take(":")
        if self.accept(".branchtargets"):
            targets = [self.take()]
            while self.accept(","):
                targets.append(self.take())
            self.take(";")
            self.kernel.tables[name] = tuple(targets)
        elif self.peek() == ".callprototype":
            self.skip_past(";")
        else:
            self.kernel.labels[name] = len(self.kernel.code)
