"""Check the prose of README and docs: length of sentences, words of the README, links to the glossary.

    python .ci/check_prose.py [--fix] [PAGE ...]

Prose is what stands in paragraphs and lists: no code, tables, headings, generated pages or changelog. A
sentence ends at a full stop, question mark or exclamation mark before a capital, and where its paragraph or
list item ends. Code in a sentence counts as one word. Limits: a median of 20 words, 35 for the longest,
900 words of prose in the README. Every term of the glossary is a link to it where a page uses it first;
--fix makes these links.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.colon_fence import colon_fence_plugin

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs/learn/glossary.md"
MAX_MEDIAN, MAX_WORDS, MAX_README_WORDS = 20, 35, 900
PARSER = MarkdownIt().enable("table").use(colon_fence_plugin)
SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*]*\s+(?=[(\"*`]*[A-Z0-9`])")
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|Fig|No)\.\s", re.IGNORECASE)


@dataclass(frozen=True)
class Sentence:
    """A sentence, its page and the line on which its paragraph begins."""

    page: Path
    line: int
    text: str

    @property
    def word_count(self) -> int:
        """Words: runs of characters between spaces that hold a letter or a digit."""
        return sum(any(c.isalnum() for c in word) for word in self.text.split())


def list_pages() -> list[Path]:
    """README, lessons of the course, and all pages of docs/ that people write."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted(p for p in (ROOT / "docs").rglob("*.md") if "project" not in p.relative_to(ROOT).parts),
        *sorted((ROOT / "ekc/course/lessons").glob("*.md")),
    ]


def find_paragraphs(text: str) -> Iterator[Token]:
    """The inline tokens of paragraphs and list items, outside tables and headings."""
    outer: list[str] = []
    for token in PARSER.parse(text):
        if token.nesting == 1:
            outer.append(token.type)
        elif token.nesting == -1:
            outer.pop()
        elif token.type == "inline" and not any(t in ("table_open", "heading_open") for t in outer):
            yield token
        elif token.type == "colon_fence":
            # An admonition: its text is prose.
            yield from find_paragraphs(re.sub(r"\A(:\w+:.*\n)+", "", token.content))


def read_text(token: Token) -> str:
    """The text of a paragraph as one line. Code is one word, an image is none."""
    parts = []
    for child in token.children or []:
        if child.type == "text":
            parts.append(child.content)
        elif child.type == "code_inline":
            parts.append("`code`")
        elif child.type in ("softbreak", "hardbreak"):
            parts.append(" ")
    return "".join(parts)


def split_sentences(page: Path, text: str) -> list[Sentence]:
    """All sentences of a page."""
    found = []
    for token in find_paragraphs(text):
        plain = ABBREVIATIONS.sub(lambda m: m[0].replace(".", ""), read_text(token))
        line = token.map[0] + 1 if token.map else 0
        found += [Sentence(page, line, s) for s in SENTENCE_END.split(plain) if any(map(str.isalnum, s))]
    return found


def read_terms() -> list[str]:
    """The terms of the glossary: its headings of the third level."""
    return re.findall(r"^### (.+)$", GLOSSARY.read_text(), re.MULTILINE) if GLOSSARY.exists() else []


def make_anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def find_unlinked(page: Path, text: str) -> list[tuple[int, str]]:
    """(line, term) of each term that this page uses in prose and links to the glossary nowhere before."""
    missing = []
    tokens = [(token, read_text(token)) for token in find_paragraphs(text)]
    for heading in read_terms() if page != GLOSSARY else []:
        pattern = re.compile(rf"\b{re.escape(heading)}(?:e?s)?\b", re.IGNORECASE)
        for token, plain in tokens:
            if f"glossary.md#{make_anchor(heading)}" in token.content:
                break
            if pattern.search(plain):
                missing.append((token.map[0] + 1 if token.map else 0, heading))
                break
    return missing


def link_terms(page: Path) -> None:
    """Make a link of the first use of each term of the glossary that this page does not link."""
    target = os.path.relpath(GLOSSARY, page.parent)
    for line, heading in find_unlinked(page, page.read_text()):
        text = page.read_text()
        start = sum(map(len, text.splitlines(keepends=True)[: line - 1]))
        pattern = re.compile(rf"`[^`]*`|\[[^\]]*\]\([^)]*\)|\b{re.escape(heading)}(?:e?s)?\b", re.IGNORECASE)
        for match in pattern.finditer(text, start):
            if match[0][0] not in "`[":
                link = f"[{match[0]}]({target}#{make_anchor(heading)})"
                page.write_text(text[: match.start()] + link + text[match.end() :])
                break


def main() -> int:
    """Check the pages, print the figures; 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    parser.add_argument("--fix", action="store_true", help="link the first use of each term to the glossary")
    arguments = parser.parse_args()
    pages = [p.resolve() for p in arguments.pages] or list_pages()
    if arguments.fix:
        for page in pages:
            link_terms(page)
    problems, every, rows = [], [], []
    for page in pages:
        if not page.exists():
            continue
        name, text = page.relative_to(ROOT), page.read_text()
        sentences = split_sentences(page, text)
        every += sentences
        if not sentences:
            continue
        counts = [s.word_count for s in sentences]
        rows.append((str(name), sum(counts), statistics.median(counts), max(counts)))
        if statistics.median(counts) > MAX_MEDIAN:
            problems.append(f"{name}: median of {statistics.median(counts):g} words, at most {MAX_MEDIAN}")
        problems += [
            f"{name}:{s.line}: {s.word_count} words, at most {MAX_WORDS}: {s.text[:70]}..."
            for s in sentences
            if s.word_count > MAX_WORDS
        ]
        problems += [
            f"{name}:{line}: {term!r} without a link to the glossary"
            for line, term in find_unlinked(page, text)
        ]
        if name == Path("README.md") and sum(counts) > MAX_README_WORDS:
            problems.append(f"{name}: {sum(counts)} words of prose, at most {MAX_README_WORDS}")
    for name, words, median, longest in rows:
        print(f"{name:50} {words:6} words, sentences: median {median:4g}, longest {longest}")
    counts = [s.word_count for s in every]
    print(f"{len(every)} sentences: median {statistics.median(counts):g}, longest {max(counts)} words")
    print(f"{len(read_terms())} terms in the glossary; {len(problems)} problems")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
