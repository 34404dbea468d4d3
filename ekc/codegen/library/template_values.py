"""Values of the templates of a library: its status codes, and functions, shapes and kernels as rows."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ekc.codegen.library.function_plan import (
    CPP_TYPES,
    FUNCTION_SUFFIXES,
    make_function_name,
    make_parameter_names,
    make_short_name,
)
from ekc.codegen.library.kernels import (
    Bundle,
    BundleFunction,
    BundleKernel,
    TargetBoard,
    lay_out_workspace,
    list_extents,
)
from ekc.codegen.render import clean_comment, format_text_words, format_words
from ekc.ir.compute import TensorSpec
from ekc.ir.expr import Var
from ekc.ir.hardware.target import parse_arch_number
from ekc.ir.operator import Operator
from ekc.tables import format_rounded
from ekc.version import __version__

STATUS_CODES: Mapping[str, str] = {
    "ok": "all launches are queued",
    "null_pointer": "a pointer is null: give every tensor and struct, and a workspace where one is needed",
    "misaligned": "a tensor is not aligned to 16 bytes, or the workspace not to 256; cudaMalloc aligns both",
    "workspace_too_small": "the workspace has fewer bytes than the kernel needs; ask workspace_bytes",
    "unknown_shape": "no kernel has these extents in this order: reductions come last, so a softmax over "
    "axis 0 of [12, 70] has 70, 12; list and the header name all extents",
    "no_kernel_for_device": "no kernel of the function runs on the device; bundle one that does",
    "not_exact": "exact_only is set, and no kernel was tuned for this board",
    "wrong_device": "a pointer is not to memory that the current device can use; see cudaSetDevice",
    "wrong_capability": "the code of the kernel does not run on the compute capability of the device",
    "launch_failed": "CUDA refused the launch; cuda_error has its error",
    "bad_struct": "an option has no legal value, or a struct of C no legal size or version",
    "wrong_extents": "the extents of a view do not fit the operator",
    "buffer_too_small": "a view has fewer bytes than its tensor",
    "no_gpu": "there is no GPU or no CUDA driver that can be used; cuda_error has the error",
    "overlap": "an output overlaps an input, or the workspace a tensor; argument says which",
    "cuda_failed": "CUDA gave an error before a launch, such as that of an earlier kernel; see cuda_error",
}
"""Sentence of each code. Codes may be added at the end; a number keeps its meaning."""
ABI_VERSION = 2
"""Version of the structs of the C interface."""
KERNELS_PER_FILE = 8
"""Kernels of a source file, at most."""
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


def build_values(bundle: Bundle, cubin: bool) -> dict[str, Any]:
    """Build the values of the templates; `cubin`: with machine code."""
    functions = [_describe_function(bundle.name, f) for f in bundle.functions]
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
    kernels = _describe_kernels(bundle, cubin)
    for row, kernel in zip(kernels, bundle.kernels, strict=True):
        row["shape"] = shape_of_operator[kernel.op.digest]
    types = {t["element"].removeprefix("const ") for f in functions for t in f["tensors"]}
    launchers = list({row["symbol"]: row for row in kernels}.values())
    return {
        "digest": _find_digest(bundle),
        "name": bundle.name,
        "version": bundle.version,
        "abi_version": ABI_VERSION,
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
        "typed_functions": list(
            {tuple((t["pointer"], t["rank"]) for t in f["tensors"]): f for f in functions}.values()
        ),
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


def _describe_kernels(bundle: Bundle, cubin: bool) -> list[dict[str, Any]]:
    """Rows of the table of kernels, without their shapes."""
    newest = _find_newest_archs(bundle)
    rows = [_describe_kernel(k, bundle.boards) for k in bundle.kernels]
    for row, kernel in zip(rows, bundle.kernels, strict=True):
        has_ptx = kernel.arch == newest[kernel.op.digest] if cubin else not kernel.board.is_exact
        row["forward"] = has_ptx
        row |= _describe_code(kernel, has_ptx) if cubin else {}
    return rows


def _find_digest(bundle: Bundle) -> str:
    """Digest of all that the C++ header declares: functions with their extents, and the number of kernels. It
    is a part of the names of symbols, so that objects of two libraries of one name do not share any."""
    shapes = [[f.name, f.id, [shape.extents for shape in f.shapes]] for f in bundle.functions]
    text = json.dumps([ABI_VERSION, shapes, len(bundle.kernels)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


def _describe_function(library: str, function: BundleFunction) -> dict[str, Any]:
    op = function.op
    tensors = (*op.inputs, *op.outputs)
    own_names = {function.name, make_function_name(op.name), make_short_name(op)}
    parameters = make_parameter_names([t.name for t in tensors], _TAKEN_PARAMETERS | own_names)
    axes = [axis.name for axis in op.computes[0].axes]
    fields = make_parameter_names(axes, _TAKEN_PARAMETERS)
    kernels = [k for shape in function.shapes for k in shape.kernels]
    unordered = {x for k in kernels for x in k.schedule.program.nondeterministic_outputs}
    return {
        "name": function.name,
        "id": function.id,
        "variable": f"ekc_{library}_{function.name}_{function.id:016x}",
        "title": clean_comment("; ".join(str(op).splitlines())),
        "inputs": len(op.inputs),
        "operator": [clean_comment(line) for line in str(op).splitlines()],
        "axes": [
            {"name": name, "field": fields[name], "text": clean_comment(_describe_axis(op, name))}
            for name in axes
        ],
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


def _describe_axis(op: Operator, axis: str) -> str:
    """Dimensions of tensors that an axis of the first compute runs over: "dimension 0 of X"."""
    first = op.computes[0]
    given = {t.name for t in (*op.inputs, *op.outputs)}
    found = {
        f"dimension {position} of {load.tensor}": None
        for load in (*first.loads, first.output_element)
        for position, index in enumerate(load.index)
        if index == Var(axis) and load.tensor in given
    }
    return ", ".join(found)


def _add_operator_names(rows: Sequence[dict[str, Any]], functions: Sequence[BundleFunction]) -> None:
    """Add shorter names of functions that were named after their operators: `matmul_float32` of
    `matmul_float32_8c1d0a4e`, where no other function has it, and `matmul`, where the types of pointers tell
    the function from all others."""
    bases = [_find_base(f) for f in functions]
    keys = [
        (make_function_name(f.op.name), tuple(t["pointer"] for t in row["tensors"]))
        for row, f in zip(rows, functions, strict=True)
    ]
    taken = {row["name"] + suffix for row in rows for suffix in FUNCTION_SUFFIXES}
    for row, base, key in zip(rows, bases, keys, strict=True):
        declared = {base + suffix for suffix in FUNCTION_SUFFIXES}
        row["aliases"] = [base] if base and bases.count(base) == 1 and not taken & declared else []
        row["names"] = [row["name"], *row["aliases"]]
        if row["name"].startswith(f"{key[0]}_") and keys.count(key) == 1 and key[0] not in taken:
            row["names"].append(key[0])


def _find_base(function: BundleFunction) -> str:
    """The name of a function without the digits of its digest; "" of one that has another name."""
    short = make_short_name(function.op)
    return short if re.fullmatch(f"{short}_[0-9a-f]{{8}}", function.name) else ""


def _format_figures(kernel: BundleKernel) -> str:
    """Figures of a kernel for a comment: "a100 (simulated): 20.3 us, 3.877 mJ (metered), of least energy"."""
    figures, label = kernel.figures, clean_comment(kernel.board.label).rstrip("\\")
    if figures.conditions:
        label += f", measured elsewhere ({clean_comment(figures.conditions)})"
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
        "exact": board.is_exact,
        "multiprocessors": board.multiprocessors,
    }


def _find_newest_archs(bundle: Bundle) -> dict[str, str]:
    """Newest plain architecture that each operator has a kernel for, by digest; "" without any."""
    newest: dict[str, str] = {}
    for kernel in bundle.kernels:
        if not kernel.board.is_exact:
            known = newest.get(kernel.op.digest, kernel.arch)
            newest[kernel.op.digest] = max(known, kernel.arch, key=parse_arch_number)
    return {kernel.op.digest: newest.get(kernel.op.digest, "") for kernel in bundle.kernels}


def _describe_code(kernel: BundleKernel, has_ptx: bool) -> dict[str, Any]:
    """Embedded code of a kernel."""
    compiled = kernel.compiled
    return {
        "cubin_bytes": len(compiled.cubin),
        "cubin_words": format_words(compiled.cubin),
        "ptx_words": format_text_words(compiled.ptx) if has_ptx else "",
        "capability": kernel.board.capability,
        "exact": kernel.board.is_exact,
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


def _format_figure(value: float | None) -> str:
    return "unknown" if value is None else repr(float(value))


def _describe_kernel(kernel: BundleKernel, boards: tuple[TargetBoard, ...]) -> dict[str, Any]:
    """A row of the table with its launcher."""
    op, compiled = kernel.schedule.program.op, kernel.compiled
    extents = "x".join(map(str, list_extents(kernel.op)))
    given = [t.name for t in (*op.inputs, *op.outputs)]
    used, offsets, total = lay_out_workspace(op, compiled)
    pointers = {x: f"tensor_{i}" for i, x in enumerate(given)}
    pointers |= {x: f"between_{i}" for i, x in enumerate(offsets)}
    return {
        "symbol": kernel.symbol,
        "arch": kernel.arch,
        "board": boards.index(kernel.board),
        "latency_s": _format_figure(kernel.figures.latency_s),
        "energy_j": _format_figure(kernel.figures.energy_j),
        "energy_source": kernel.figures.energy_source,
        "conditions": json.dumps(kernel.figures.conditions),
        "comments": [
            clean_comment(f"{kernel.board.label}, {kernel.function}, {extents}"),
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
