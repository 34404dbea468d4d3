"""Write a library: headers, sources, CMake and make files, tests and its record.

What depends on the kernels comes from templates; the C++ files of `sources/` are the same in all libraries.

The record also tells which kernels a library had before it was written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ekc.argument_checks import check_flag, check_path
from ekc.codegen.library.folder import replace_files
from ekc.codegen.library.kernels import (
    Bundle,
    BundleKernel,
)
from ekc.codegen.library.naive_kernels import build_check_values
from ekc.codegen.library.template_values import build_values
from ekc.codegen.render import render_template
from ekc.errors import EkcError, InvalidInput
from ekc.file_limits import parse_json, read_plain_file
from ekc.ir.operator import operator_from_json
from ekc.version import __version__

LICENSE = "0BSD"
"""License of the generated files: no conditions at all."""
SOURCES = Path(__file__).with_name("sources")
"""C++ files that are the same in all libraries; the generated `names.h` has the names of one."""
_KERNELS_HEADS = tuple(
    f"// SPDX-License-Identifier: {LICENSE}\n// {what} of ekc_".encode()
    for what in ("Kernels", "Machine code of kernels")
)
"""Beginnings of generated files of kernels."""
_GENERATED_FILES = ("CMakeLists.txt", "Makefile")
"""Files that a folder of a user may have too."""


def write_bundle(bundle: Bundle, folder: str | Path, *, cubin: bool = False) -> tuple[Path, ...]:
    """Write the files of a library into a folder; returns their paths, sources of kernels first.

    cubin: embed the machine code of the kernels instead of their CUDA source. The library then needs a C++
    compiler and at run time a driver, but no toolkit.

    A missing folder is made. All files are replaced in one step, as `replace_files` says; kernels of an
    earlier bundle of the name that this one lacks are removed, and other files stay. Raises `InvalidInput`
    for a folder that cannot be written, or that holds a bundle of another name.
    """
    folder = Path(check_path("folder", folder))
    check_flag("cubin", cubin)
    check_folder(folder, bundle.name)
    texts = build_texts(bundle, cubin)
    return replace_files(folder, texts, [path for path in _list_sources(folder, bundle) if path not in texts])


def _list_sources(folder: Path, bundle: Bundle) -> list[str]:
    """The sources of kernels in a folder that ekc wrote for a bundle of this name."""
    try:
        sources = [p for p in (folder / "src").glob(f"{bundle.name}_sm_*.c*") if p.is_file()]
        return [f"src/{p.name}" for p in sources if p.read_bytes().startswith(_KERNELS_HEADS)]
    except OSError:  # Writing says what is wrong with the folder.
        return []


def check_folder(folder: Path, name: str) -> None:
    """Raise `InvalidInput` where a folder holds a library of another name, or files of the user that the
    library has too."""
    try:
        others = sorted(p.stem for p in (folder / "include" / "ekc").glob("*.hpp") if p.stem != name)
        own = [p for p in _GENERATED_FILES if (folder / p).is_file() and not _is_generated(folder / p)]
    except OSError:  # Writing says what is wrong with the folder.
        return
    if others:
        raise InvalidInput(f"{folder} holds the library {others[0]}; choose another folder for {name}")
    if own:
        raise InvalidInput(
            f"{folder} has a {own[0]} that ekc did not write; choose another folder, such as {folder / name}"
        )


def _is_generated(path: Path) -> bool:
    return f"SPDX-License-Identifier: {LICENSE}".encode() in path.read_bytes()[:200]


def build_texts(bundle: Bundle, cubin: bool = False) -> dict[str, str]:
    """Text of each file by its path in the folder of the bundle; `cubin` as for `write_bundle`."""
    name = bundle.name
    values = build_values(bundle, cubin) | build_check_values(bundle)
    generated = {
        f"include/ekc/{name}.h": "library.h.j2",
        f"include/ekc/{name}.hpp": "library.hpp.j2",
        "src/names.h": "names.h.j2",
        "src/tables.h": "tables.h.j2",
        "CMakeLists.txt": "library.cmake.j2",
        f"cmake/ekc_{name}-config.cmake.in": "config.cmake.j2",
        "Makefile": "library.make.j2",
        "tests/host_cases.h": "host_cases.h.j2",
        f"tests/{name}_naive.cpp": "naive.cpp.j2",
    }
    same = {
        f"src/{name}.cpp": "library.cpp",
        "src/runtime.h": "runtime.h",
        f"src/{name}_runtime.cpp": "runtime_driver.cpp" if cubin else "runtime_cudart.cpp",
        **({"src/machine_code.h": "machine_code.h"} if cubin else {}),
        f"tests/{name}_host_test.cpp": "host_test.cpp",
        f"tests/{name}_check.cpp": "check.cpp",
        "tests/check_gpu.h": "check_gpu.h",
        "tests/check_values.h": "check_values.h",
        "tests/naive.h": "naive.h",
    }
    texts: dict[str, str] = {}
    for row in values["arch_rows"]:
        for stem, launchers in row["sources"].items():
            sources = values | {"arch": row["arch"], "kernels": launchers}
            ending, template = ("cpp", "cubin.cpp.j2") if cubin else ("cu", "kernels.cu.j2")
            texts[f"src/{stem}.{ending}"] = render_template(f"library/{template}", **sources)
    texts |= {path: render_template(f"library/{template}", **values) for path, template in generated.items()}
    texts |= {path: (SOURCES / source).read_text(encoding="utf-8") for path, source in same.items()}
    texts[f"{name}.json"] = json.dumps(build_provenance(bundle), indent=1) + "\n"
    return texts


def build_provenance(bundle: Bundle) -> dict[str, Any]:
    """Content of the JSON file: enough to compile each kernel again, and the source of its figures."""
    return {
        "SPDX-License-Identifier": LICENSE,
        "name": bundle.name,
        "version": bundle.version,
        "ekc_version": __version__,
        "boards": [asdict(b) | {"source": b.source} for b in bundle.boards],
        "functions": [
            {
                "name": f.name,
                "id": f"{f.id:#018x}",
                "operators": [{"extents": s.extents, "operator": s.op.to_json()} for s in f.shapes],
            }
            for f in bundle.functions
        ],
        "kernels": [_build_kernel_record(k) for k in bundle.kernels],
    }


def _build_kernel_record(kernel: BundleKernel) -> Mapping[str, Any]:
    return {
        "symbol": kernel.symbol,
        "function": kernel.function,
        "board": kernel.board.name,
        "arch": kernel.arch,
        "source": kernel.board.source,
        "role": kernel.role,
        "latency_s": kernel.figures.latency_s,
        "energy_j": kernel.figures.energy_j,
        "energy_source": kernel.figures.energy_source,
        "conditions": kernel.figures.conditions,
        "provenance": dict(kernel.figures.provenance),
        "workspace_bytes": kernel.compiled.workspace_bytes,
        "launches": [
            {fact: getattr(x, fact) for fact in ("name", "grid", "block", "shared_bytes", "arguments")}
            for x in kernel.compiled.launches
        ],
        "flops": kernel.compiled.flops,
        "min_bytes": kernel.compiled.min_bytes,
        "nvrtc_version": kernel.compiled.nvrtc_version,
        "resources": [asdict(r) for r in kernel.compiled.resources],
        "digest": kernel.schedule.digest,
        "schedule": json.loads(kernel.schedule.to_json()),
    }


_MAX_NAMED = 2
"""Operators that a line names, at most."""


def read_contents(folder: Path, name: str) -> frozenset[tuple[str, str]]:
    """Read the operator and the board of each kernel of a library, from its record; nothing without a record
    that can be read."""
    try:
        record = parse_json(read_plain_file(folder / f"{name}.json"))
        return frozenset(_describe_record(kernel) for kernel in record["kernels"])
    except (OSError, ValueError, KeyError, TypeError, EkcError):
        return frozenset()


def _describe_record(kernel: Mapping[str, Any]) -> tuple[str, str]:
    """Operator and board of a kernel in a record."""
    title = str(operator_from_json(kernel["schedule"]["operator"])).splitlines()[0]
    return title, f"{kernel['board']}{' (simulated)' * (kernel['source'] == 'simulated')}"


def describe_lost(folder: Path, before: frozenset[tuple[str, str]], after: frozenset[tuple[str, str]]) -> str:
    """Describe in a line what a library had before it was written again, and has no more; "" if nothing.

    "out held matmul(A[8, 8] float32, B[8, 8] float32) for a100 (simulated); another --out keeps both".
    """
    lost = sorted(before - after)
    if not lost:
        return ""
    boards = sorted({board for _, board in lost})
    titles = list(dict.fromkeys(title for title, _ in lost))
    more = f" and {len(titles) - _MAX_NAMED} more" if len(titles) > _MAX_NAMED else ""
    named = ", ".join(titles[:_MAX_NAMED])
    return f"{folder} held {named}{more} for {', '.join(boards)}; another --out keeps both"
