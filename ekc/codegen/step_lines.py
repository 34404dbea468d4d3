"""Which step of a schedule a line of the CUDA text comes from.

The Programs before and after each step show what it made or changed: a loop, its level, a copy of a tensor.
The text names the same things (`CNames`), so a line is attributed to the step that made what it names: a
`for` to the step that made or pipelined its loop, an index to the step that bound it, a copy to the step that
staged the tensor. Lines that no step made, such as the arithmetic of the operator, have none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ekc.codegen.emit.names import CNames
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.program import Program
from ekc.ir.schedule.schedule import Schedule

Makers = Mapping[tuple[str, str], int]
"""(what, name) -> number of the last step that made or changed it. `what` is "loop", "level", "unroll",
"stages", "staging", "accumulator", "instruction" or "atomics"; the latter three are under name ""."""

_FOR = re.compile(r"for \((?:[a-z ]+) (\w+?)(_now)? = ")
_INDEX = re.compile(r"const (?:int|unsigned int|long long) (\w+) = .*\b(?:blockIdx|threadIdx)\b")
_DECLARATION = re.compile(
    r"^(?:__shared__ |extern |alignas\(|__align__\().*?\b(\w+)(?:\[[^\]]*\])+;$"
    r"|^\w+ (\w+)(?:\[[^\]]*\])+;$"
)
_ASSIGNMENT = re.compile(r"^(?:\*reinterpret_cast<[^>]*>\(&)?(\w+)\[.*\]\)? = ")
_PIPELINE = re.compile(r"wait_copies|commit_copies|fence_async_proxy|^int \w+_slot = |_(?:slot|free) = ")
_TENSOR_CORES = re.compile(r"\b(?:begin_products|commit_products|wait_for_products|w?g?mma\w*)\b[(<]")
_COPY_COMMENT = re.compile(
    r"^// (?:stage|compute|fetch|store it in|copy|fragments|write|add|source offsets|addresses|parts of)\b"
)


def derive_step_lines(schedule: Schedule, source: str) -> tuple[int, ...]:
    """Find the number of the step, from 1, that each line of the CUDA text of a schedule comes from; 0 for a
    line that comes from none."""
    makers = _find_makers(schedule)
    names = _find_names(schedule.program)
    lines = source.splitlines()
    found = [0] * len(lines)
    for i, line in enumerate(lines):
        text = line.strip()
        if text.startswith("//") and _COPY_COMMENT.match(text):
            step = _find_copy_step(text, makers, names)
            for k in range(i, _find_block_end(lines, i)):
                found[k] = found[k] or step
        found[i] = _find_line_step(text, makers, names) or found[i]
    for i, line in enumerate(lines[:-1]):
        if line.strip().startswith("#pragma unroll"):
            found[i] = _find_unroll_step(lines[i + 1].strip(), makers, names) or found[i + 1]
    return tuple(found)


def _find_makers(schedule: Schedule) -> Makers:
    """Find what each step made or changed, from the Programs before and after it."""
    makers: dict[tuple[str, str], int] = {}
    before = _list_properties(Schedule(schedule.op).program)
    for number in range(1, len(schedule.steps) + 1):
        after = _list_properties(Schedule(schedule.op, schedule.steps[:number]).program)
        makers |= {key: number for key, value in after.items() if before.get(key) != value}
        before = after
    return makers


def _list_properties(program: Program) -> dict[tuple[str, str], object]:
    """List what a line of text can name, with its value; defaults are left out."""
    found: dict[tuple[str, str], object] = {}
    for nest in program.nests:
        for loop in nest.loops:
            found["loop", loop.name] = (loop.axis, int(loop.extent))
            if loop.level != "serial":
                found["level", loop.name] = loop.level
            if int(loop.unroll) > 1:
                found["unroll", loop.name] = int(loop.unroll)
            if int(loop.stages) > 1:
                found["stages", loop.name] = int(loop.stages), loop.copy
        found |= {("staging", s.name): (s.at, s.scope) for s in nest.stagings}
        output = nest.compute.output.name
        if nest.has_accumulator:
            found["accumulator", f"{output}.acc"] = int(nest.store_vector)
        if nest.instruction:
            found["instruction", ""] = nest.instruction
        if nest.is_atomic:
            found["atomics", ""] = output
    return found


def _find_names(program: Program) -> dict[str, str]:
    """Find the name in the Program of each C name of a loop or buffer."""
    launches = derive_launches(program)
    return {c: name for kernel in launches for name, c in CNames.for_kernel(kernel).table.items()}


def _find_line_step(text: str, makers: Makers, names: Mapping[str, str]) -> int:
    if loop := _FOR.search(text):
        name = names.get(loop[1], "")
        return (makers.get(("stages", name), 0) if loop[2] else 0) or makers.get(("loop", name), 0)
    if index := _INDEX.search(text):
        return makers.get(("level", names.get(index[1], "")), 0)
    if _TENSOR_CORES.search(text):
        return makers.get(("instruction", ""), 0)
    if text.startswith("atomicAdd("):
        return makers.get(("atomics", ""), 0)
    if _PIPELINE.search(text):
        return max((n for (what, _), n in makers.items() if what == "stages"), default=0)
    match = _DECLARATION.match(text) or _ASSIGNMENT.match(text)
    return _find_buffer_step(next((g for g in match.groups() if g), ""), makers, names) if match else 0


def _find_buffer_step(word: str, makers: Makers, names: Mapping[str, str]) -> int:
    """Find the step that made a buffer; a tile fetched ahead belongs to the copy that it is for."""
    name = names.get(word) or names.get(word.removesuffix("_next"), "")
    return makers.get(("staging", name), 0) or makers.get(("accumulator", name), 0)


def _find_copy_step(comment: str, makers: Makers, names: Mapping[str, str]) -> int:
    """Find the step of a comment such as `// stage A[...] -> A_shared`: that of the last buffer it names, or
    for `// fetch A[...]` that of the shared copy of the tensor."""
    words = re.findall(r"\w+", comment)
    steps = [_find_buffer_step(word, makers, names) for word in reversed(words)]
    fetched = [makers.get(("staging", f"{names.get(word, '')}.shared"), 0) for word in words]
    return next((step for step in (*steps, *fetched) if step), 0)


def _find_unroll_step(header: str, makers: Makers, names: Mapping[str, str]) -> int:
    loop = _FOR.search(header)
    return makers.get(("unroll", names.get(loop[1], "")), 0) if loop else 0


def _find_block_end(lines: Sequence[str], start: int) -> int:
    """Find the end of the statement below a comment: where its braces are closed again."""
    depth = 0
    for i in range(start + 1, len(lines)):
        text = lines[i].strip()
        depth += text.count("{") - text.count("}")
        if depth < 0:
            return i
        if depth == 0 and not text.startswith(("#", "//")):
            return i + 1
    return len(lines)
