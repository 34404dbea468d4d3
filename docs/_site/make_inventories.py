"""Make the inventories of Python and NumPy, which the site links names with.

    python docs/_site/make_inventories.py

The build has no network, so it cannot fetch the inventories of these sites. `NAMES` lists the names that our
docstrings and signatures use, each with its page. Add a line for a new name and run the script again.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from sphinx.util.inventory import InventoryFile

FOLDER = Path(__file__).parent / "inventories"
NAMES = {
    "python": [
        ("library/constants.html", "data", "False None True"),
        ("library/stdtypes.html", "class", "bytes dict frozenset int float list range set str tuple"),
        ("library/functions.html", "class", "bool object type"),
        ("library/exceptions.html", "exception", "Exception KeyboardInterrupt OSError ValueError"),
        ("library/exceptions.html", "exception", "RuntimeWarning UserWarning"),
        ("library/typing.html", "data", "typing.Any typing.ClassVar typing.Literal"),
        ("library/typing.html", "class", "typing.Protocol"),
        ("library/collections.abc.html", "class", "collections.abc.Callable collections.abc.Iterable"),
        ("library/collections.abc.html", "class", "collections.abc.Mapping collections.abc.Sequence"),
        ("library/concurrent.futures.html", "class", "concurrent.futures.Executor concurrent.futures.Future"),
        ("library/contextlib.html", "class", "contextlib.AbstractContextManager"),
        ("library/pathlib.html", "class", "pathlib.Path"),
    ],
    "numpy": [
        ("reference/generated/numpy.ndarray.html", "class", "numpy.ndarray"),
        ("reference/typing.html", "data", "numpy.typing.NDArray"),
        ("reference/arrays.scalars.html", "class", "numpy.bool numpy.float64 numpy.int64"),
    ],
}
"""Site -> (page, kind of name, names). The anchor of a name on its page is the name."""
ALIASES = {"concurrent.futures._base.Executor": "concurrent.futures.Executor"}
"""Name under which a class introduces itself -> its documented name."""


class _Object(NamedTuple):
    """A name, as a domain of Sphinx lists it."""

    name: str
    display_name: str
    kind: str
    page: str
    anchor: str
    priority: int


def write_inventory(site: str, folder: Path) -> Path:
    """Write the inventory of a site of `NAMES` into a folder."""
    objects = [
        _Object(name, name, kind, page, documented, 1)
        for page, kind, names in NAMES[site]
        for documented in names.split()
        for name in (documented, *(a for a, target in ALIASES.items() if target == documented))
    ]
    # The parts of a Sphinx environment and of its builder that `dump` uses.
    domain = SimpleNamespace(name="py", get_objects=lambda: objects)
    config = SimpleNamespace(project=site, version="")
    environment = SimpleNamespace(config=config, domains=SimpleNamespace(sorted=lambda: [domain]))
    builder = SimpleNamespace(get_target_uri=lambda page: page)
    path = folder / f"{site}.inv"
    InventoryFile.dump(path, environment, builder)  # type: ignore[arg-type]
    return path


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for site in NAMES:
        print(write_inventory(site, FOLDER))
