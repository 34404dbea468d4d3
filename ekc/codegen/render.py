"""The Jinja2 environment: templates in, CUDA text out, without constants that nothing in their scope uses.

Templates write each coordinate and counter that a copy may need. Which of them a copy does need depends on
strips, guards and the values computed before the loop; nvcc warns of each constant that nothing uses.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jinja2
import numpy as np


def indent_lines(text: str) -> str:
    """Every line one level in, blank ones dropped."""
    return "".join(f"    {line}\n" for line in text.splitlines() if line.strip())


@cache
def make_environment() -> jinja2.Environment:
    """Templates of this package; an undefined name is an error, not an empty string."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("ekc.codegen"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters["indented"] = indent_lines
    return env


def render_template(template: str, **values: Any) -> str:
    """The text of a template with these values."""
    return make_environment().get_template(template).render(**values)


_CONSTANT_PATTERN = re.compile(r"\s*(?:const|constexpr) (?:int|long long) (\w+) = ([^;]*);")
_COUNTER_PATTERN = re.compile(r"for \((?:int|long long) (\w+) = ")
_WORD_PATTERN = re.compile(r"\w+")


def collect_words(text: str) -> frozenset[str]:
    """The words of a text outside its comments."""
    return frozenset(w for line in text.splitlines() for w in _WORD_PATTERN.findall(line.split("//")[0]))


def drop_unused_constants(text: str) -> str:
    """The text without each `const int x = ...;` whose x no later line of the same block uses.

    Lines are read backwards, with the words used so far in each open block. An inner block has its own set,
    so that a constant of the same name in there does not count as a use outside.
    """
    lines: list[str] = []
    used: list[set[str]] = [set()]
    for line in reversed(text.splitlines(keepends=True)):
        code = line.split("//")[0].strip()
        constant = _CONSTANT_PATTERN.fullmatch(code)
        if constant and constant[1] not in used[-1]:
            continue
        counter = _COUNTER_PATTERN.match(code)
        if code == "}":
            used.append(set())
        elif code.endswith("{"):
            inner = used.pop()
            used[-1] |= inner - {counter[1] if counter else ""}
        elif constant:
            used[-1].discard(constant[1])
        used[-1] |= collect_words(constant[2] if constant else code) - {counter[1] if counter else ""}
        lines.append(line)
    return "".join(reversed(lines))


def clean_comment(text: str) -> str:
    """Make one line that cannot end a C comment."""
    return " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")


_WORD_BYTES = 8
_WORDS_PER_LINE = 5


def format_words(data: bytes) -> str:
    """Format bytes as elements of an array of `std::uint64_t`, which every compiler accepts at any size.

    Numbers are little-endian as on all hosts of GPUs, and filled up with zeros to a whole element.

    b"\\x01" becomes "    0x1,".
    """
    words = np.frombuffer(data + bytes(-len(data) % _WORD_BYTES), "<u8").tolist()
    starts = range(0, len(words), _WORDS_PER_LINE)
    return "\n".join("    " + " ".join(f"{w:#x}," for w in words[s : s + _WORDS_PER_LINE]) for s in starts)


def format_text_words(text: str) -> str:
    """Format a text as elements of an array of `std::uint64_t`, with a zero byte at its end."""
    return format_words(text.encode() + b"\0")
