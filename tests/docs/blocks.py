"""The fenced blocks of a Markdown page."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block: its language, its text, and the line of the page it starts on."""

    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """Every fenced block of a page, in order."""
    return [Block(m[1], m[2], page.count("\n", 0, m.start(2)) + 1) for m in _FENCE.finditer(page)]


def read_commands(page: str, language: str) -> list[str]:
    """The lines of the blocks of a language."""
    return [line for block in blocks(page) if block.language == language for line in block.text.splitlines()]


def printed(block: Block, namespace: dict[str, Any]) -> str:
    """The output of a Python block, run in a namespace that blocks before it filled."""
    code = compile("\n" * (block.line - 1) + block.text, "the page", "exec")
    sink = io.StringIO()
    with contextlib.redirect_stdout(sink):
        exec(code, namespace)
    return sink.getvalue()


def with_outputs(page: str, outputs: list[str]) -> str:
    """The page with its text blocks replaced, one by one."""
    rest = iter(outputs)
    return _FENCE.sub(lambda m: f"```text\n{next(rest)}```\n" if m[1] == "text" else m[0], page)
