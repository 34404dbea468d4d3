"""Account for every test of commit 1b27d93: kept, renamed, merged into another, or gone with what it tested.

    python docs/decisions/2026-11-26-tests/account.py

`before.txt` lists the tests of that commit, `map.tsv` what became of those that have another name now. The
tests of today are those that pytest collects with all markers. Prints a count of each kind, and every test
that is not accounted for or whose successor does not exist. Exit status 1 where there is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def collect_tests() -> set[str]:
    """Names of the tests of today, without parameters."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", ""]
    text = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {re.sub(r"\[.*", "", line) for line in text.splitlines() if "::" in line}


def read_map() -> dict[str, str]:
    """Old name -> new name, "merged into NAME" or "gone with WHAT"."""
    rows = [line.split("\t") for line in (HERE / "map.tsv").read_text().splitlines() if line.strip()]
    return {row[0].strip(): row[1].strip() for row in rows}


def judge(test: str, today: set[str], moved: dict[str, str]) -> str:
    """Kind of what became of a test; "unlisted" or "lost" where it is not accounted for."""
    fate = moved.get(test)
    if fate is None:
        return "kept" if test in today else "unlisted"
    if fate.startswith("gone with"):
        return "gone"
    kind = "merged" if fate.startswith("merged into") else "renamed"
    successor = fate.removeprefix("merged into").strip()
    return kind if successor in today else "lost"


def main() -> int:
    """Print the account."""
    today, moved = collect_tests(), read_map()
    fates = {test: judge(test, today, moved) for test in (HERE / "before.txt").read_text().split()}
    for test, fate in fates.items():
        if fate in ("unlisted", "lost"):
            print(f"{fate}: {test} -> {moved.get(test, '?')}")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(Counter(fates.values()).items())))
    return int(any(fate in ("unlisted", "lost") for fate in fates.values()))


if __name__ == "__main__":
    sys.exit(main())
