"""A progress bar on stderr, or silence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """What the tuner tells while it works."""

    def __call__(self, done: int, text: str) -> None:
        """`done` trials so far, and what is best."""


def announce(text: str) -> None:
    """Say something on stderr, before the bar."""
    from rich.console import Console

    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(text)


@contextmanager
def progress_bar(total: int, title: str, shown: bool) -> Iterator[Progress]:
    """A bar over `total` trials; does nothing unless `shown`."""
    if not shown:
        yield lambda done, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, text="")

        def tell(done: int, text: str) -> None:
            bar.update(task, completed=done, text=text)

        yield tell
