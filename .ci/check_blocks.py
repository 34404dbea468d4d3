"""Check the blocks of Python and shell on README and pages: counts by page, and those that are not executed.

    python .ci/check_blocks.py

`sphinx-build` executes every block that has no reason behind its language (docs/_site/pages.py). The others
are listed here and parsed: Python must compile, and every option of an `ekc` command must be one of its
`--help`.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from _site.pages import Block, find_blocks, is_skipped  # noqa: E402

from ekc.cli.main import ekc as command_group  # noqa: E402


def list_pages() -> list[Path]:
    """README, pages and lessons of the course."""
    return [
        ROOT / "README.md",
        *sorted(p for p in (ROOT / "docs").rglob("*.md") if "project" not in p.relative_to(ROOT).parts),
        *sorted((ROOT / "ekc/course/lessons").glob("*.md")),
    ]


def find_problems(block: Block) -> Iterator[str]:
    """List the mistakes in a block that is not executed."""
    if block.language == "python":
        try:
            compile(block.source, "block", "exec")
        except SyntaxError as problem:
            yield f"not Python: {problem.msg}"
        return
    for line in block.source.replace("\\\n", " ").splitlines():
        for command in re.findall(r"(?:^|[\s/])ekc\s+([a-z].*)", line.split("#")[0]):
            yield from find_unknown_options(command)


def find_unknown_options(command: str) -> Iterator[str]:
    """Options of an `ekc` command, as typed, that its `--help` does not have."""
    words = shlex.split(re.split(r"\s(?:--\s|[|&;>])", command + " ")[0])
    found: click.Command = command_group
    while isinstance(found, click.Group) and words and words[0] in found.commands:
        found = found.commands[words.pop(0)]
    if found is command_group and words and not words[0].startswith("-"):
        yield f"ekc {words[0]}: no such command"
        return
    known = {name for parameter in found.params for name in parameter.opts} | {"--help", "-h", "--version"}
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in known:
            yield f"ekc {found.name}: no option {word}"


def main() -> int:
    """Print the lists; 1 where a block is wrong."""
    counts: Counter[str] = Counter()
    problems: list[str] = []
    print("Blocks that are not executed with the site:")
    for page in list_pages():
        name = page.relative_to(ROOT)
        for block in find_blocks(page.read_text()):
            counts[str(block.skip_reason) if is_skipped(block) else "executed"] += 1
            if is_skipped(block):
                print(f"  {name}:{block.line}: {block.language}, {block.skip_reason}")
                problems += [f"{name}:{block.line}: {problem}" for problem in find_problems(block)]
    print(", ".join(f"{reason} {count}" for reason, count in counts.most_common()))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
