"""A record file of three small operators on two simulated devices, and the library of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ekc
from ekc.bundle import CollectedBundle, collect_bundle
from ekc.codegen.library.build import KernelChoice, build_kernel
from ekc.codegen.library.kernels import Bundle, KernelFigures, TargetBoard
from ekc.codegen.library.write import write_bundle
from ekc.search.data.selection import SelectionRule

OPERATORS = (
    ekc.matmul(64, 64, 64),
    ekc.matmul(32, 32, 64, dtype="float16"),
    ekc.softmax((8, 64)),
)


def cut_digits(name: str) -> str:
    """The name of a function of a record file without the digits of its operator."""
    return name[:-9]


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each operator tuned with 4 trials for a100 and h100."""
    file = tmp_path_factory.mktemp("records") / "tuning.db"
    for target in ("a100", "h100"):
        for op in OPERATORS:
            ekc.tune(op, target=target, trials=4, seed=0, records=file, progress=False)
    return file


@pytest.fixture(scope="session")
def collected(records: Path) -> CollectedBundle:
    return collect_bundle("net", records, rule=SelectionRule("energy", 1.0))


@pytest.fixture(scope="session")
def bundle(collected: CollectedBundle) -> Bundle:
    """The same, and the last operator for a third architecture."""
    ada = TargetBoard("rtx4090", "sm_89", True)
    *others, last = collected.bundle.functions
    shape = last.shapes[0]
    choice = KernelChoice(shape.kernels[0].schedule, KernelFigures(2e-6, 1e-4))
    kernels = (*shape.kernels, build_kernel("net", last.name, choice, ada, None))
    functions = (*others, replace(last, shapes=(replace(shape, kernels=kernels),)))
    return replace(collected.bundle, boards=(*collected.bundle.boards, ada), functions=functions)


@pytest.fixture(scope="session")
def library(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the library `net` for sm_80, sm_89 and sm_90a."""
    folder = tmp_path_factory.mktemp("library") / "net"
    write_bundle(bundle, folder)
    return folder
