"""PTX text to a `Module`: declarations, kernels, statements."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ekc.emulator.ptx.constants import ConstantReader
from ekc.emulator.ptx.labels import Labels
from ekc.emulator.ptx.operands import Names
from ekc.emulator.ptx.program import TYPE_BYTES, Instruction, KernelText, Module, Register, Variable
from ekc.emulator.ptx.tokens import spelled, uncommented
from ekc.errors import EkcError

_SPACES = {".global", ".const", ".shared", ".local", ".param", ".reg", ".tex"}
_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_LABEL = re.compile(r"([%$_A-Za-z][\w$]*)\s*:(?!:)")
_STATEMENT = re.compile(
    r"(?:@\s*(!?)\s*([%$_A-Za-z][\w$]*)\s+)?([A-Za-z_][\w$]*+(?:(?:\.|::)[\w$]++)*+)([^;]*);"
)
"""Whether the guard is negated, the guard, the opcode, the operands."""
_LOCATION = re.compile(
    r"\d+\s+(\d+)\s+\d+"
    r"(?:\s*,\s*(?:function_name\s+[%$_A-Za-z][\w$]*(?:\s*\+\s*\d+)?|inlined_at\s+\d+\s+\d+\s+\d+))*"
)
"""File, line and column, and the places where the function was inlined."""
_NO_STATEMENT = ("{", "}", ".", "")
"""How that begins which stands between statements; the last is the end of the text."""


def parse(text: str) -> Module:
    """Read a PTX text; `EkcError` with the line for what is malformed or cut off."""
    return _Parser(uncommented(text)).module()


class _Parser(ConstantReader):
    """A recursive descent: over tokens through declarations, over whole statements through code."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.kernel, self.names, self.labels = KernelText(""), Names(), Labels()
        self.source_line: int | None = None

    # -- module ---------------------------------------------------------------------------------
    def module(self) -> Module:
        if self.peek() != ".version":
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
        self.names, self.labels = Names(), Labels()
        self.kernel = KernelText(self.take(), registers=self.names.registers)
        self.source_line = None
        if self.accept("("):
            while not self.accept(")"):
                self.take(".param")
                self.kernel.parameters.extend(self.variables("param", "," if self.peek() != ")" else ")"))
        while self.peek() != "{":
            self.performance(self.take())
        self.take("{")
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
            yield self.constant()
            return
        while not self.accept("}"):
            if self.peek() == "{":
                yield from self.initial()
            else:
                yield self.constant()
            self.accept(",")

    def registers(self) -> None:
        kind = self.take()[1:]
        if kind not in TYPE_BYTES:
            raise EkcError(f"PTX line {self.line()}: registers of type {kind!r} are unknown")
        while True:
            name = self.take()
            if self.accept("<"):
                names = [f"{name}{i}" for i in range(self.offset())]
                self.take(">")
            else:
                names = [name]
            self.names.declare(names, kind)
            if not self.accept(","):
                break
        self.take(";")

    # -- statements -----------------------------------------------------------------------------
    def body(self) -> None:
        """Statements up to the closing brace; inner braces (inline assembly) open a scope."""
        while True:
            if self.source[self.at : self.at + 1] not in _NO_STATEMENT:
                self.statement()
                continue
            word = self.take() if self.peek() else self.take("}")
            if word == "}":
                if not self.names.nested:
                    return
                self.names.close()
                self.labels.close(self.kernel)
            elif word == "{":
                self.names.open()
                self.labels.open(self.kernel)
            elif word == ".reg":
                self.registers()
            elif word in _SPACES:
                found = self.variables(word[1:])
                self.kernel.variables.extend(replace(v, name=self.names.variable(v.name)) for v in found)
            elif word == ".loc":
                self.location()
            elif word == ".pragma":
                self.skip_past(";")
            elif word not in _LINKAGE:
                raise EkcError(f"PTX line {self.line()}: unknown directive {word!r}")

    def location(self) -> None:
        found = _LOCATION.match(self.source, self.at)
        if found is None:
            raise EkcError(f"PTX line {self.line()}: .loc without file, line and column")
        self.source_line = int(found[1])
        self.go(found.end())

    def statement(self) -> None:
        """A label or an instruction."""
        if label := _LABEL.match(self.source, self.at):
            own = self.labels.declare(label[1], self.line())
            self.go(label.end())
            self.label(own)
            return
        line, match = self.line(), _STATEMENT.match(self.source, self.at)
        if match is None:
            word = self.peek()
            self.skip_past(";")
            raise EkcError(f"PTX line {line}: {word!r} where an instruction was expected")
        negated, guarded, opcode, operands = match.groups()
        guard = Register(self.names.resolve(guarded), bool(negated)) if guarded else None
        raw = self.source[match.start() : match.end() - 1]
        try:
            found = self.names.operands(operands, line)
        except EkcError as problem:
            raise EkcError(f"{problem}, in {spelled(raw)!r}") from None
        self.kernel.code.append(Instruction(opcode, guard, found, line, self.source_line, raw))
        self.go(match.end())

    def label(self, name: str) -> None:
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
