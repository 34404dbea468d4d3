"""The parser: PTX text -> `Module` with its declarations, kernels and instructions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NoReturn

from ekc.errors import EkcError
from ekc.ptx.constants import ConstantReader
from ekc.ptx.lexer import format_statement, strip_comments
from ekc.ptx.module import TYPE_BYTES, Instruction, KernelText, Module, Register, Variable
from ekc.ptx.operands import NameScopes

_SPACES = {".global", ".const", ".shared", ".local", ".param", ".reg", ".tex"}
_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_STATEMENT = re.compile(
    r"(?:([%$_A-Za-z][\w$]*+)\s*+:(?!:)"
    r"|((?:@\s*(!?)\s*([%$_A-Za-z][\w$]*)\s+)?([A-Za-z_][\w$]*+(?:(?:\.|::)[\w$]++)*+)([^;]*+));)\s*"
)
"""A label; or an instruction as a whole, whether its guard is negated, its guard, opcode and operands."""
_LOCATION = re.compile(
    r"\d+\s+(\d+)\s+\d+"
    r"(?:\s*,\s*(?:function_name\s+[%$_A-Za-z][\w$]*(?:\s*\+\s*\d+)?|inlined_at\s+\d+\s+\d+\s+\d+))*"
)
"""File, line and column, and the places where the function was inlined."""
_NON_STATEMENT_STARTS = ("{", "}", ".", "")
"""First characters of all that is no statement; "" is the end of the text."""


@lru_cache(maxsize=4)
def parse_module(text: str) -> Module:
    """Parse a PTX text; `EkcError` names the line of an error, or of the end of a truncated text.

    The last four modules are cached, so that a kernel is counted, surveyed and executed from one module. Do
    not change a module.
    """
    return _Parser(strip_comments(text)).parse_module()


class _Parser(ConstantReader):
    """A recursive descent parser: declarations by token, instructions by one regular expression each."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.kernel, self.scopes = KernelText(""), NameScopes()
        self.source_line: int | None = None

    # -- module ---------------------------------------------------------------------------------
    def parse_module(self) -> Module:
        if self.peek() != ".version":
            raise EkcError("not PTX: the text does not begin with .version")
        self.take(".version")
        module = Module(self.take(), "")
        while self.peek():
            self.parse_directive(module)
        if not module.target:
            raise EkcError("PTX without .target: truncated?")
        return module

    def parse_directive(self, module: Module) -> None:
        word = self.take()
        if word == ".target":
            module.target = self.take()
            while self.accept(","):
                self.take()
        elif word == ".address_size":
            if self.read_integer() != 64:
                raise self.make_error("only 64-bit addresses are emulated")
        elif word in _LINKAGE:
            return
        elif word == ".entry":
            kernel = self.parse_entry()
            module.kernels[kernel.name] = kernel
        elif word == ".func":
            self.skip_function()
        elif word in _SPACES:
            module.variables.extend(self.parse_variables(word[1:]))
        elif word == ".file":
            self.skip_file()
        elif word == ".section":
            self.skip_past("}")
        elif word == ".pragma":
            self.skip_past(";")
        else:
            raise self.make_error(f"unknown directive {word!r} (PTX {module.version})")

    def skip_file(self) -> None:
        self.take()
        self.take()
        while self.accept(","):
            self.take()

    def skip_function(self) -> None:
        """Skip a function that is not inlined. A call to it is refused later."""
        while self.peek() not in ("{", ";"):
            self.take()
        if self.take() == ";":
            return
        depth = 1
        while depth:
            word = self.take()
            depth += (word == "{") - (word == "}")

    def parse_entry(self) -> KernelText:
        self.scopes = NameScopes()
        self.kernel = KernelText(self.take(), registers=self.scopes.registers)
        self.source_line = None
        if self.accept("("):
            while not self.accept(")"):
                self.take(".param")
                self.kernel.parameters.extend(self.parse_variables("param", is_parameter=True))
        while self.peek() != "{":
            self.parse_launch_bound(self.take())
        self.take("{")
        self.parse_body()
        return self.kernel

    def parse_launch_bound(self, word: str) -> None:
        """Parse `.maxntid`, `.reqntid` and the like."""
        if not word.startswith("."):
            raise self.make_error(f"{word!r} where the body of the kernel was expected")
        total = 1
        while self.peek() and self.peek()[0].isdigit():
            total *= self.read_integer()
            self.accept(",")
        if word in (".maxntid", ".reqntid"):
            self.kernel.max_threads = total

    # -- declarations ---------------------------------------------------------------------------
    def parse_variables(self, space: str, is_parameter: bool = False) -> list[Variable]:
        align, kind, variables = 0, "b8", []
        while self.peek().startswith("."):
            word = self.take()
            if word == ".align":
                align = self.read_integer()
            elif word[1:] in TYPE_BYTES:
                kind = word[1:]
            # Other words (.ptr, .global, .v4, ...) change neither size nor alignment.
        while True:
            name = self.take()
            count: int | None = 1
            while self.accept("["):
                count = None if self.peek() == "]" else (count or 1) * self.read_integer()
                self.take("]")
            values = tuple(self.parse_initializer()) if self.accept("=") else ()
            variables.append(Variable(name, space, kind, count, align or TYPE_BYTES[kind], values))
            more = self.accept(",")
            if is_parameter:
                return variables
            if not more:
                break
        self.take(";")
        return variables

    def parse_initializer(self) -> Iterable[int | float]:
        if not self.accept("{"):
            yield self.read_constant()
            return
        while not self.accept("}"):
            if self.peek() == "{":
                yield from self.parse_initializer()
            else:
                yield self.read_constant()
            self.accept(",")

    def parse_registers(self) -> None:
        kind = self.take()[1:]
        if kind not in TYPE_BYTES:
            raise self.make_error(f"registers of type {kind!r} are unknown")
        while True:
            name = self.take()
            if self.accept("<"):
                names = [f"{name}{i}" for i in range(self.read_offset())]
                self.take(">")
            else:
                names = [name]
            self.scopes.registers |= dict.fromkeys(self.scopes.declare_names(names), kind)
            if not self.accept(","):
                break
        self.take(";")

    # -- statements -----------------------------------------------------------------------------
    def parse_body(self) -> None:
        """Parse statements up to the closing brace; inner braces (inline assembly) open a scope."""
        while True:
            if match := _STATEMENT.match(self.source, self.position):
                self.parse_statement(match)
                continue
            if self.source[self.position : self.position + 1] not in _NON_STATEMENT_STARTS:
                self.refuse_statement()
            word = self.take() if self.peek() else self.take("}")
            if word == "}":
                if not self.scopes.is_nested:
                    return
                self.scopes.close_scope(self.kernel)
            elif word == "{":
                self.scopes.open_scope(self.kernel)
            elif word == ".reg":
                self.parse_registers()
            elif word in _SPACES:
                variables = self.parse_variables(word[1:])
                names = self.scopes.declare_names([v.name for v in variables])
                pairs = zip(variables, names, strict=True)
                self.kernel.variables += [replace(v, name=name) for v, name in pairs]
            elif word == ".loc":
                self.parse_location()
            elif word == ".pragma":
                self.skip_past(";")
            elif word not in _LINKAGE:
                raise self.make_error(f"unknown directive {word!r}")

    def parse_location(self) -> None:
        match = _LOCATION.match(self.source, self.position)
        if match is None:
            raise self.make_error(".loc without file, line and column")
        self.source_line = int(match[1])
        self.move_to(match.end())

    def parse_statement(self, match: re.Match[str]) -> None:
        """Add a label or an instruction to the kernel."""
        line = self.current_line()
        label, raw, negation, guarded, opcode, text = match.groups()
        if label is not None:
            own = self.scopes.declare_label(label, line)
            self.set_position(match.end())
            self.parse_label(own, line)
            return
        guard = Register(self.scopes.resolve_name(guarded), bool(negation)) if guarded else None
        try:
            operands = self.scopes.parse_operands(text, line)
        except EkcError as problem:
            raise EkcError(f"{problem}, in {format_statement(raw)!r}") from None
        self.kernel.code.append(Instruction(opcode, guard, operands, line, self.source_line, raw))
        self.set_position(match.end())

    def refuse_statement(self) -> NoReturn:
        """`EkcError` for a text that is neither a label, an instruction nor a directive."""
        line, word = self.current_line(), self.peek()
        self.skip_past(";")
        raise EkcError(f"PTX line {line}: {word!r} where an instruction was expected")

    def parse_label(self, name: str, line: int) -> None:
        if self.accept(".branchtargets"):
            targets = [self.take()]
            while self.accept(","):
                targets.append(self.take())
            self.take(";")
            self.kernel.branch_tables[name] = tuple(targets)
        elif self.peek() == ".callprototype":
            self.skip_past(";")
        else:
            self.kernel.labels[name] = len(self.kernel.code)
            self.kernel.label_lines[name] = line
