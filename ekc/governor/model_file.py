"""The file of a model that predicts a job over the SM clock: what the model fits, and its boosted trees.

It is one JSON object: the number of its format, the GPU, the counters and the clocks of `ModelDescription`,
the version of XGBoost that wrote the trees, each booster as a text in XGBoost's own JSON, and a digest of the
rest, which shows damage. `response_model` makes predictions from it.

No NumPy and no XGBoost is imported, since the job has not started yet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from ekc.errors import InvalidInput
from ekc.file_limits import parse_json, read_plain_file
from ekc.governor.protocols import is_board

FORMAT = 1
"""Number of the format; it rises where the inputs or targets of the trees change."""
COUNTERS = ("sm_active", "dram", "tensor", "fma")
"""Counters that ekc reads, each 0 to 100: time with work on an SM, use of the memory's bandwidth, of the
tensor cores, and of the other arithmetic pipes together."""
TARGETS = ("time", "energy")
"""Targets of the trees: the logarithm of seconds and of joules, each relative to the default clock's."""
_TRAIN = "train one for it: python -m benchmarks.governor.predict --card CARD --out FILE"


@dataclass(frozen=True)
class ModelDescription:
    """The GPU, counters and clocks that a model fits."""

    gpu: str
    """Name of the board, such as "h200", or a product name."""
    counters: tuple[str, ...]
    """Counters that it needs, of `COUNTERS`; none for a model that predicts from power and use alone."""
    clock_ratios: tuple[float, ...]
    """SM clocks that it was trained over, as shares of the clock at the default; they ascend to 1."""
    trained_on: str
    """Description of the training data for people; simulated data say so."""


@dataclass(frozen=True)
class ModelFile:
    """The content of a file; no trees are built yet."""

    path: Path
    description: ModelDescription
    trees: Mapping[str, str]
    """XGBoost's JSON of the trees, by `TARGETS`."""

    def check_board(self, name: str, product_name: str) -> None:
        """Raise `InvalidInput` for a board that the model is not for; `name` is the board's for people."""
        if not is_board(self.description.gpu, product_name):
            found = f"it is for the board {self.description.gpu}, and {name} is another"
            raise InvalidInput(f"--model {self.path}: {found}; {_TRAIN}")


def write_model_file(path: Path, description: ModelDescription, trees: Mapping[str, str]) -> None:
    """Write a model; `trees`: XGBoost's JSON by `TARGETS`. Raises `OSError`."""
    content = {"format": FORMAT, **asdict(description), "xgboost": version("xgboost"), "trees": dict(trees)}
    path.write_text(json.dumps({**content, "sha256": _compute_digest(content)}) + "\n")


def read_model_file(path: Path) -> ModelFile:
    """Read a model. Raises `InvalidInput` with one line that says what was found and what is needed: for a
    file that cannot be read or is damaged, another format, other counters, and an XGBoost that is missing or
    older than the trees."""
    try:
        content = parse_json(read_plain_file(path))
        if content["format"] != FORMAT:
            found = f"it has format {content['format']}, and this ekc reads format {FORMAT}"
            raise InvalidInput(f"--model {path}: {found}; {_TRAIN}")
        if content.pop("sha256") != _compute_digest(content):
            raise ValueError("its digest is that of another content")
        trees = {target: str(content["trees"][target]) for target in TARGETS}
        description = _read_description(content)
        _check_xgboost(path, str(content["xgboost"]))
    except OSError as problem:
        raise InvalidInput(f"--model {path}: it cannot be read ({problem.strerror}); {_TRAIN}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as problem:
        found = f"it is damaged, or no model of ekc ({type(problem).__name__}: {problem})"
        raise InvalidInput(f"--model {path}: {found}; {_TRAIN}") from None
    if unknown := [name for name in description.counters if name not in COUNTERS]:
        known = ", ".join(COUNTERS)
        raise InvalidInput(
            f"--model {path}: it needs the counter {unknown[0]}, and ekc reads {known}; {_TRAIN}"
        )
    return ModelFile(path, description, trees)


def _compute_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the values, whatever the order of their keys and the spaces between them."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_description(content: Mapping[str, Any]) -> ModelDescription:
    """The description, with values of its types. Raises `ValueError`, `LookupError` or `TypeError`."""
    ratios = tuple(map(float, content["clock_ratios"]))
    if len(ratios) < 3 or ratios[-1] != 1 or not all(0 < a < b for a, b in pairwise(ratios)):
        raise ValueError(f"clocks {ratios} do not ascend to 1")
    return ModelDescription(
        str(content["gpu"]), tuple(map(str, content["counters"])), ratios, str(content["trained_on"])
    )


def _check_xgboost(path: Path, needed: str) -> None:
    """Raise `InvalidInput` where the installed XGBoost may not read what version `needed` wrote."""
    try:
        installed = version("xgboost")
    except PackageNotFoundError:
        installed = ""
    if not installed or int(installed.split(".")[0]) < int(needed.split(".")[0]):
        raise InvalidInput(
            f"--model {path}: its trees are of XGBoost {needed}, and {installed or 'none'} is installed; "
            f"pip install 'xgboost>={needed}'"
        )
