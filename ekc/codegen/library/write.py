"""Write a bundle: headers, sources, CMake and make files, provenance and a test, from templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ekc.argument_checks import check_flag, check_path
from ekc.codegen.library.function_plan import (
    CPP_TYPES,
    FUNCTION_SUFFIXES,
    make_function_name,
    make_parameter_names,
)
from ekc.codegen.library.kernels import (
    Bundle,
    BundleFunction,
    BundleKernel,
    TargetBoard,
    list_extents,
)
from ekc.codegen.library.naive_kernels import build_check_values
from ekc.codegen.library.status_codes import STATUS_CODES
from ekc.codegen.library.texts import (
    clean_comment,
    format_text_words,
    format_words,
    lay_out_workspace,
    write_files,
)
from ekc.codegen.render import render_template
from ekc.errors import InvalidInput
from ekc.ir.compute import TensorSpec
from ekc.ir.hardware.target import parse_arch_number
from ekc.ir.operator import Operator
from ekc.tables import format_rounded
from ekc.version import __version__

LICENSE = "0BSD"
"""License of the generated files: no conditions at all."""
KERNELS_PER_FILE = 8
"""Kernels of a source file, at most."""
_KERNELS_HEADS = tuple(
    f"// SPDX-License-Identifier: {LICENSE}\n// {what} of ekc_".encode()
    for what in ("Kernels", "Machine code of kernels")
)
"""Beginnings of generated files of kernels."""
_GENERATED_FILES = ("CMakeLists.txt", "Makefile")
"""Files that a folder of a user may have too."""
_ROLE_WORDS = {
    "both": "",
    "latency": ", the fastest",
    "energy": ", of least energy",
    "between": ", between these",
}
"""Words of a comment for each role of a kernel."""
_TAKEN_PARAMETERS = frozenset(
    {"extents_", "workspace_", "stream_", "options_", "tensors_", "status_", "bytes_", "found_"}
    | {
        "to_array",
        "detail",
        "std",
        "ekc",
        "View",
        "Workspace",
        "Stream",
        "Options",
        "Status",
        "Device",
        "Info",
    }
)
"""Names that tensors and axes cannot have, because the text of the functions has them."""


def write_bundle(bundle: Bundle, folder: str | Path, *, cubin: bool = False) -> tuple[Path, ...]:
    """Write the files of a library into a folder; returns their paths.

    cubin: embed the machine code of the kernels instead of their CUDA source. The library then needs a C++
    compiler and at run time a driver, but no toolkit.

    A missing folder is made; each file is replaced in one step; kernels of an earlier bundle of the name that
    this one lacks are removed. Raises `InvalidInput` for a folder that cannot be written, or that holds a
    bundle of another name.
    """
    folder = Path(check_path("folder", folder))
    check_flag("cubin", cubin)
    check_folder(folder, bundle.name)
    texts = build_texts(bundle, cubin)
    written = write_files(folder, texts, "bundle")
    for path in (folder / "src").glob(f"{bundle.name}_sm_*.c*"):
        is_old = f"src/{path.name}" not in texts and path.is_file()
        if is_old and path.read_bytes().startswith(_KERNELS_HEADS):
            path.unlink()
    return written


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
    files = {
        f"include/ekc/{name}.h": "library.h.j2",
        f"include/ekc/{name}.hpp": "library.hpp.j2",
        f"src/{name}.cpp": "library.cpp.j2",
        f"src/{name}_runtime.h": "runtime.h.j2",
        f"src/{name}_runtime.cpp": "runtime_driver.cpp.j2" if cubin else "runtime_cudart.cpp.j2",
        "CMakeLists.txt": "library.cmake.j2",
        f"cmake/ekc_{name}-config.cmake.in": "config.cmake.j2",
        "Makefile": "library.make.j2",
        f"tests/{name}_host_test.cpp": "host_test.cpp.j2",
        f"tests/{name}_check.cpp": "check.cpp.j2",
        f"tests/{name}_check_gpu.h": "check_gpu.h.j2",
        f"tests/{name}_check_values.h": "check_values.h.j2",
        f"tests/{name}_naive.h": "naive.h.j2",
        f"tests/{name}_naive.cpp": "naive.cpp.j2",
    }
    texts: dict[str, str] = {}
    for row in values["arch_rows"]:
        for stem, launchers in row["sources"].items():
            sources = values | {"arch": row["arch"], "kernels": launchers}
            ending, template = ("cpp", "cubin.cpp.j2") if cubin else ("cu", "kernels.cu.j2")
            texts[f"src/{stem}.{ending}"] = render_template(f"library/{template}", **sources)
    for path, template in files.items():
        texts[path] = render_template(f"library/{template}", **values)
    texts[f"{name}.json"] = json.dumps(build_provenance(bundle), indent=1) + "\n"
    return texts


def build_values(bundle: Bundle, cubin: bool) -> dict[str, Any]:
    """Values of the templates."""
    functions = [_describe_function(f) for f in bundle.functions]
    _add_operator_names(functions, bundle.functions)
    by_id = sorted(range(len(functions)), key=lambda i: bundle.functions[i].id)
    first_kernel: dict[str, int] = {}
    for number, kernel in enumerate(bundle.kernels):
        first_kernel.setdefault(kernel.op.digest, number)
    shape_rows: list[dict[str, Any]] = []
    tensor_rows: list[dict[str, Any]] = []
    shape_of_operator: dict[str, int] = {}
    for position, index in enumerate(by_id):
        functions[index]["first_shape"] = len(shape_rows)
        for shape in bundle.functions[index].shapes:
            shape_of_operator.setdefault(shape.op.digest, len(shape_rows))
            shape_rows.append(
                {
                    "function": position,
                    "extents": shape.extents,
                    "first_tensor": len(tensor_rows),
                    "first_kernel": first_kernel[shape.op.digest],
                    "kernels": len(shape.kernels),
                }
            )
            tensor_rows += [_describe_shape(t) for t in (*shape.op.inputs, *shape.op.outputs)]
    newest = _find_newest_archs(bundle)
    kernels = [_describe_kernel(k, bundle.boards) for k in bundle.kernels]
    for row, kernel in zip(kernels, bundle.kernels, strict=True):
        has_ptx = kernel.arch == newest[kernel.op.digest] if cubin else not kernel.board.is_exact
        row["forward"] = _format_bool(has_ptx)
        row |= _describe_code(kernel, has_ptx) if cubin else {}
    for row, kernel in zip(kernels, bundle.kernels, strict=True):
        row["shape"] = shape_of_operator[kernel.op.digest]
    types = {t["element"].removeprefix("const ") for f in functions for t in f["tensors"]}
    launchers = list({row["symbol"]: row for row in kernels}.values())
    return {
        "name": bundle.name,
        "version": bundle.version,
        "ekc_version": __version__,
        "codes": [{"name": c.upper(), "word": c, "text": text} for c, text in STATUS_CODES.items()],
        "archs": bundle.archs,
        "arch_rows": [
            _describe_arch(arch) | {"sources": _split_sources(f"{bundle.name}_{arch}", arch, launchers)}
            for arch in bundle.archs
        ],
        "boards": [_describe_board(b) for b in bundle.boards],
        "cubin": cubin,
        "functions": functions,
        "functions_by_id": [functions[i] for i in by_id],
        "shape_rows": shape_rows,
        "tensor_rows": tensor_rows,
        "kernels": kernels,
        "kernel_count": len(kernels),
        "launchers": launchers,
        "max_axes": max([1, *(len(row["extents"]) for row in shape_rows)]),
        "max_rank": max([1, *(row["rank"] for row in tensor_rows)]),
        "half": "__half" in types,
        "bfloat": "__nv_bfloat16" in types,
    }


def _split_sources(
    stem: str, arch: str, launchers: Sequence[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Launchers of an architecture by the name of their source file without its ending: `net_sm_80`,
    `net_sm_80_2`, and so on. nvcc compiles the kernels of a file one after another, and files in parallel."""
    own = [launcher for launcher in launchers if launcher["arch"] == arch]
    starts = range(0, len(own), KERNELS_PER_FILE)
    return {
        stem if number == 0 else f"{stem}_{number + 1}": own[start : start + KERNELS_PER_FILE]
        for number, start in enumerate(starts)
    }


def _describe_function(function: BundleFunction) -> dict[str, Any]:
    op = function.op
    tensors = (*op.inputs, *op.outputs)
    own_names = {function.name, make_function_name(op.name)}
    parameters = make_parameter_names([t.name for t in tensors], _TAKEN_PARAMETERS | own_names)
    axes = [axis.name for axis in op.computes[0].axes]
    fields = make_parameter_names(axes, _TAKEN_PARAMETERS)
    kernels = [k for shape in function.shapes for k in shape.kernels]
    unordered = {x for k in kernels for x in k.schedule.program.nondeterministic_outputs}
    return {
        "name": function.name,
        "id": function.id,
        "title": clean_comment(str(op).splitlines()[0]),
        "operator": [clean_comment(line) for line in str(op).splitlines()],
        "axes": [{"name": name, "field": fields[name]} for name in axes],
        "shapes": [
            {"extents": shape.extents, "figures": [_format_figures(k) for k in shape.kernels]}
            for shape in function.shapes
        ],
        "unordered": ", ".join(sorted(unordered)),
        "tensors": [
            {
                "parameter": parameters[t.name],
                "element": ("" if t in op.outputs else "const ") + CPP_TYPES[t.dtype.name],
                "pointer": ("" if t in op.outputs else "const ") + CPP_TYPES[t.dtype.name] + "*",
                "rank": len(t.shape),
                "text": f"{t.name} of {t.dtype}, rank {len(t.shape)}",
                "is_output": t in op.outputs,
            }
            for t in tensors
        ],
    }


def _add_operator_names(rows: Sequence[dict[str, Any]], functions: Sequence[BundleFunction]) -> None:
    """Add the name of its operator to the names of a function that was named after it, where the types of
    pointers tell the function from all others: `matmul` beside `matmul_float32`."""
    keys = [
        (make_function_name(f.op.name), tuple(t["pointer"] for t in row["tensors"]))
        for row, f in zip(rows, functions, strict=True)
    ]
    taken = {row["name"] + suffix for row in rows for suffix in FUNCTION_SUFFIXES}
    for row, key in zip(rows, keys, strict=True):
        row["names"] = [row["name"]]
        if row["name"].startswith(f"{key[0]}_") and keys.count(key) == 1 and key[0] not in taken:
            row["names"].append(key[0])


def _format_figures(kernel: BundleKernel) -> str:
    """Figures of a kernel for a comment: "a100 (simulated): 20.3 us, 3.877 mJ (metered), for energy"."""
    figures, label = kernel.figures, clean_comment(kernel.board.label).rstrip("\\")
    if figures.latency_s is None:
        return f"{label}: not measured"
    latency = f"{format_rounded(figures.latency_s * 1e6, 4)} us"
    if figures.energy_j is None:
        return f"{label}: {latency}"
    energy = f"{format_rounded(figures.energy_j * 1e3, 4)} mJ ({figures.energy_source})"
    return f"{label}: {latency}, {energy}" + _ROLE_WORDS[kernel.role]


def _describe_shape(tensor: TensorSpec) -> dict[str, Any]:
    return {"rank": len(tensor.shape), "extents": tensor.shape or (0,), "bytes": tensor.bytes}


def _describe_board(board: TargetBoard) -> dict[str, Any]:
    return {
        "name": json.dumps(board.name),
        "source": board.source,
        "capability": board.capability,
        "exact": _format_bool(board.is_exact),
    }


def _find_newest_archs(bundle: Bundle) -> dict[str, str]:
    """Newest plain architecture that each operator has a kernel for, by digest; "" without any."""
    newest: dict[str, str] = {}
    for kernel in bundle.kernels:
        if not kernel.board.is_exact:
            known = newest.get(kernel.op.digest, kernel.arch)
            newest[kernel.op.digest] = max(known, kernel.arch, key=parse_arch_number)
    return {kernel.op.digest: newest.get(kernel.op.digest, "") for kernel in bundle.kernels}


def _format_bool(value: bool) -> str:
    return "true" if value else "false"


def _describe_code(kernel: BundleKernel, has_ptx: bool) -> dict[str, Any]:
    """Embedded code of a kernel."""
    compiled = kernel.compiled
    return {
        "cubin_bytes": len(compiled.cubin),
        "cubin_words": format_words(compiled.cubin),
        "ptx_words": format_text_words(compiled.ptx) if has_ptx else "",
        "capability": kernel.board.capability,
        "exact": _format_bool(kernel.board.is_exact),
    }


def _describe_arch(arch: str) -> dict[str, str]:
    """Settings of compilers for an architecture: `sm_90a` has no PTX that later ones could use."""
    number = arch.removeprefix("sm_")
    is_plain = number.isdigit()
    codes = f"[sm_{number},compute_{number}]" if is_plain else f"sm_{number}"
    return {
        "arch": arch,
        "cmake": number if is_plain else f"{number}-real",
        "gencode": f"arch=compute_{number},code={codes}",
    }


def _format_extents(op: Operator) -> str:
    return "x".join(map(str, list_extents(op)))


def _format_figure(value: float | None) -> str:
    return "unknown" if value is None else repr(float(value))


def _describe_kernel(kernel: BundleKernel, boards: tuple[TargetBoard, ...]) -> dict[str, Any]:
    """A row of the table with its launcher."""
    # The operator of the program has the tensors that steps of the schedule add, such as parts of a sum.
    op, compiled = kernel.schedule.program.op, kernel.compiled
    given = [t.name for t in (*op.inputs, *op.outputs)]
    used = dict.fromkeys(a for launch in compiled.launches for a in launch.arguments)
    between = [op.tensors[x] for x in used if x not in given]
    offsets, total = lay_out_workspace(between)
    pointers = {x: f"tensor_{i}" for i, x in enumerate(given)}
    pointers |= {x: f"between_{i}" for i, x in enumerate(offsets)}
    return {
        "symbol": kernel.symbol,
        "arch": kernel.arch,
        "board": boards.index(kernel.board),
        "latency_s": _format_figure(kernel.figures.latency_s),
        "energy_j": _format_figure(kernel.figures.energy_j),
        "energy_source": kernel.figures.energy_source,
        "comments": [
            clean_comment(f"{kernel.board.label}, {kernel.function}, {_format_extents(kernel.op)}"),
            *(clean_comment(f"{key}: {value}") for key, value in kernel.figures.provenance.items()),
        ],
        "workspace_bytes": total,
        "shared_bytes": max(launch.shared_bytes for launch in compiled.launches),
        "role": kernel.role,
        "digest": kernel.schedule.digest,
        "cuda_source": compiled.cuda_source,
        "tensors": [str(op.tensors[x]) for x in given],
        "used": [pointers[x] for x in used],
        "workspace": [{"offset": at, "text": str(op.tensors[x])} for x, at in offsets.items()],
        "launches": [
            asdict(launch) | {"pointers": [pointers[a] for a in launch.arguments]}
            for launch in compiled.launches
        ],
    }


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
        "board": kernel.device,
        "arch": kernel.arch,
        "source": kernel.source,
        "role": kernel.role,
        "latency_s": kernel.figures.latency_s,
        "energy_j": kernel.figures.energy_j,
        "energy_source": kernel.figures.energy_source,
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
