"""Hostile and damaged ONNX models. Run as a program it reads all of them under a limit of memory, and prints
for each what became of it, the seconds and the growth of memory."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ekc
from ekc.errors import InvalidInput

MOST_BYTES = 8 << 30
"""Limit of the address space of the child."""
X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
Y = helper.make_empty_tensor_value_info("y")
Model = onnx.ModelProto


def make(
    nodes: list[Any], tensors: list[Any] | None = None, inputs: list[Any] | None = None, **more: Any
) -> Model:
    graph = helper.make_graph(nodes, "graph", inputs or [X], [Y], tensors or [])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), *more.pop("opsets", [])], **more
    )


def integers(name: str, *numbers: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def number(name: str, value: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value, np.int64), name)


def sparse_bomb(folder: Path) -> Model:
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    places = numpy_helper.from_array(np.zeros(1, np.int64), "places")
    model = make([helper.make_node("MatMul", ["x", "w"], ["y"])])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3, 2_666_666_666]))
    return model


def sparse_place(folder: Path) -> Model:
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    places = numpy_helper.from_array(np.array([99]), "places")
    model = make([helper.make_node("MatMul", ["x", "w"], ["y"])])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3, 4]))
    return model


def range_bomb(folder: Path) -> Model:
    nodes = [
        helper.make_node("Range", ["a", "b", "c"], ["r"]),
        helper.make_node("ReduceSum", ["r"], ["s"]),
        helper.make_node("Cast", ["s"], ["t"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "t"], ["y"]),
    ]
    return make(nodes, [number("a", 0), number("b", 10**9), number("c", 1)])


def float_range_bomb(folder: Path) -> Model:
    tensors = [
        numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("a", 0), ("b", 1e9), ("c", 1))
    ]
    nodes = [helper.make_node("Range", ["a", "b", "c"], ["r"]), helper.make_node("ReduceMax", ["r"], ["s"]),
             helper.make_node("Add", ["x", "s"], ["y"])]  # fmt: skip
    return make(nodes, tensors)


def fill_bomb(operator: str) -> Callable[[Path], Model]:
    """A constant of 4 G elements by an operator that repeats."""

    def build(folder: Path) -> Model:
        one = numpy_helper.from_array(np.ones((1, 1), np.float32), "one")
        names = {"ConstantOfShape": ["shape"], "Expand": ["one", "shape"], "Tile": ["one", "shape"]}
        inputs = names.get(operator, ["one", "pads"])
        nodes = [
            helper.make_node(operator, inputs, ["big"]),
            helper.make_node("Neg", ["big"], ["minus"]),
            helper.make_node("ReduceMax", ["minus"], ["top"]),
            helper.make_node("Add", ["x", "top"], ["y"]),
        ]
        return make(nodes, [one, integers("shape", 65536, 65536), integers("pads", 0, 0, 65535, 65535)])

    return build


def chain_bomb(folder: Path) -> Model:
    """40 constants of 64 MB, each from the one before."""
    nodes = [helper.make_node("ConstantOfShape", ["shape"], ["c0"])]
    nodes += [helper.make_node("Sin", [f"c{i}"], [f"c{i + 1}"]) for i in range(40)]
    nodes += [helper.make_node("Concat", [f"c{i}" for i in range(41)], ["all"], axis=0)]
    nodes += [helper.make_node("ReduceMax", ["all"], ["top"]), helper.make_node("Add", ["x", "top"], ["y"])]
    return make(nodes, [integers("shape", 1 << 24)])


def mask_bomb(folder: Path) -> Model:
    wide = helper.make_tensor_value_info("x", TensorProto.FLOAT, [200_000, 200_000])
    return make([helper.make_node("Trilu", ["x"], ["y"])], inputs=[wide])


def places_bomb(folder: Path) -> Model:
    wide = helper.make_tensor_value_info("x", TensorProto.FLOAT, [100_000, 100_000])
    rows = helper.make_tensor_value_info("i", TensorProto.INT64, [100_000, 100_000])
    return make([helper.make_node("GatherElements", ["x", "i"], ["y"], axis=1)], inputs=[wide, rows])


def function_bomb(folder: Path) -> Model:
    """Functions that call the next one ten times, nine deep: 10^9 nodes."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = []
    for depth in range(9):
        callee = ("Relu", "") if depth == 8 else (f"f{depth + 1}", "own")
        names = ["x", *[f"v{i}" for i in range(9)], "y"]
        nodes = [helper.make_node(callee[0], [a], [b], domain=callee[1]) for a, b in pairwise(names)]
        functions.append(helper.make_function("own", f"f{depth}", ["x"], ["y"], nodes, opsets))
    return make([helper.make_node("f0", ["x"], ["y"], domain="own")], functions=functions, opsets=opsets[1:])


def endless_function(folder: Path) -> Model:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    node = helper.make_node("f", ["x"], ["y"], domain="own")
    function = helper.make_function("own", "f", ["x"], ["y"], [node], opsets)
    return make([node], functions=[function], opsets=opsets[1:])


def nested_branches(depth: int) -> Callable[[Path], Path]:
    """Branches in branches, as bytes: the package onnx would not write them."""

    def build(folder: Path) -> Path:
        graph = field(1, field(1, b"x") + field(2, b"y") + field(4, b"Relu")) + field(2, b"g")
        for _ in range(depth):
            branches = b"".join(
                field(
                    5, field(1, name) + field(6, graph if name == b"then_branch" else b"") + b"\xa0\x01\x05"
                )
                for name in (b"then_branch", b"else_branch")
            )
            graph = field(1, field(1, b"c") + field(2, b"y") + field(4, b"If") + branches) + field(2, b"g")
        path = folder / f"nested{depth}.onnx"
        path.write_bytes(b"\x08\x08" + field(7, graph) + field(8, b"\x10\x12"))
        return path

    return build


def field(number: int, data: bytes) -> bytes:
    """A field of a message of protobuf that has a length."""
    size, head = len(data), bytes([number << 3 | 2])
    while size > 127:
        head, size = head + bytes([size & 127 | 128]), size >> 7
    return head + bytes([size]) + data


def cycle(folder: Path) -> Model:
    return make([helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Add", ["a", "x"], ["b"]),
                 helper.make_node("Relu", ["b"], ["y"])])  # fmt: skip


def two_names(folder: Path) -> Model:
    return make([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])])


def two_weights(folder: Path) -> Model:
    tensors = [numpy_helper.from_array(np.full(3, v, np.float32), "w") for v in (1, 2)]
    return make([helper.make_node("Add", ["x", "w"], ["y"])], tensors)


def short_weight(folder: Path) -> Model:
    model = make([helper.make_node("Add", ["x", "w"], ["y"])])
    model.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[2, 3], raw_data=b"12345"))
    return model


def huge_weight(folder: Path) -> Model:
    model = make([helper.make_node("Add", ["x", "w"], ["y"])])
    model.graph.initializer.append(
        TensorProto(name="w", data_type=1, dims=[1 << 40, 1 << 40], raw_data=b"1234")
    )
    return model


def negative_weight(folder: Path) -> Model:
    model = make([helper.make_node("Add", ["x", "w"], ["y"])])
    model.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[-1], raw_data=b"1234" * 3))
    return model


def unknown_type(folder: Path) -> Model:
    model = make([helper.make_node("Add", ["x", "w"], ["y"])])
    model.graph.initializer.append(TensorProto(name="w", data_type=999, dims=[3], raw_data=b"1234" * 3))
    return model


def huge_input(folder: Path) -> Model:
    wide = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1 << 40, 1 << 40])
    return make([helper.make_node("Relu", ["x"], ["y"])], inputs=[wide])


def truncated(folder: Path) -> Path:
    path = folder / "truncated.onnx"
    weight = numpy_helper.from_array(np.ones((64, 3), np.float32), "w")
    data = make([helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)], [weight]).SerializeToString()
    path.write_bytes(data[: len(data) // 2])
    return path


def noise(folder: Path) -> Path:
    path = folder / "noise.onnx"
    path.write_bytes(np.random.default_rng(0).bytes(100_000))
    return path


def external(folder: Path, location: str, **fields: Any) -> Path:
    weight = numpy_helper.from_array(np.ones((3, 4), np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **fields}.items():
        weight.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(make([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight]).SerializeToString())
    return path


def link_out(folder: Path) -> Path:
    inner = folder / "inner"
    inner.mkdir(exist_ok=True)
    (folder / "secret.bin").write_bytes(bytes(48))
    if not (inner / "w.bin").is_symlink():
        os.symlink(folder / "secret.bin", inner / "w.bin")
    return external(inner, "w.bin")


def folder_link_out(folder: Path) -> Path:
    inner, outer = folder / "inner2", folder / "outer"
    inner.mkdir(exist_ok=True)
    outer.mkdir(exist_ok=True)
    (outer / "w.bin").write_bytes(bytes(48))
    if not (inner / "data").is_symlink():
        os.symlink(outer, inner / "data")
    return external(inner, "data/w.bin")


def bad_offset(offset: str) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        (folder / "w.bin").write_bytes(bytes(48))
        return external(folder, "w.bin", offset=offset)

    return build


def long_name(folder: Path) -> Model:
    return make([helper.make_node("NonZero", ["x"], ["n" * 1_000_000]),
                 helper.make_node("Neg", ["n" * 1_000_000], ["y"])])  # fmt: skip


def line_in_name(folder: Path) -> Model:
    return make(
        [
            helper.make_node("NonZero", ["x"], ["n"], name="a\nTraceback"),
            helper.make_node("Neg", ["n"], ["y"]),
        ]
    )


READ = "read"
CASES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "sparse bomb": (
        sparse_bomb,
        "sparse initialiser 'w' takes 29.8 GiB as a dense tensor; ekc unpacks at most 1 GiB",
    ),
    "sparse place": (sparse_place, "sparse initialiser 'w' cannot be read: index 99 is out of bounds"),
    "range": (range_bomb, READ),
    "range of floats": (float_range_bomb, READ),
    **{name: (fill_bomb(name), READ) for name in ("ConstantOfShape", "Expand", "Tile", "Pad")},
    "chain": (chain_bomb, READ),
    "mask": (mask_bomb, "no layer to tune; Trilu (y): a constant of 149 GiB: too large to be computed"),
    "places": (places_bomb, "a constant of 298 GiB: too large to be computed"),
    "functions": (
        function_bomb,
        "its functions are 1000000000 nodes when they are inlined; ekc reads at most 1000000",
    ),
    "endless function": (endless_function, "function"),
    "nested branches": (nested_branches(20), "onnx.checker refuses the model"),
    "deep branches": (nested_branches(5000), "no ONNX model, or a part of one"),
    "cycle": (cycle, "onnx.checker refuses the model"),
    "two names": (two_names, "onnx.checker refuses the model"),
    "two weights": (two_weights, "w initializer name is not unique"),
    "short weight": (short_weight, "initialiser 'w' cannot be read"),
    "huge weight": (huge_weight, "initialiser 'w' cannot be read"),
    "negative weight": (negative_weight, "initialiser 'w' has the shape (-1,); sizes are 0 or more"),
    "unknown type": (unknown_type, "initialiser 'w' cannot be read: no type of element has the number 999"),
    "huge input": (huge_input, ""),
    "truncated": (truncated, "no ONNX model, or a part of one"),
    "noise": (noise, "no ONNX model"),
    "link out": (
        link_out,
        "a link to a file out of the folder of the model; copy that file beside the model",
    ),
    "folder link out": (folder_link_out, "a link to a file out of the folder of the model"),
    "negative offset": (bad_offset("-8"), "initialiser 'w'"),
    "offset in words": (bad_offset("many"), "initialiser 'w'"),
    "offset far out": (bad_offset(str(1 << 62)), "initialiser 'w' needs"),
    "long name": (long_name, "depends on data"),
    "line in name": (line_in_name, "depends on data"),
}
"""Name -> the model, and a part of the line that refuses it. `READ`: it is read; "": read, or refused."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    folder, *names = sys.argv[1:]
    for name in names or CASES:
        source = CASES[name][0](Path(folder))
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            text = str(ekc.models.from_onnx(source))
            line = READ if "internal error" not in text else text
        except InvalidInput as problem:
            line = str(problem)
        except BaseException as problem:
            line = f"crash: {type(problem).__name__}: {problem}"
        seconds = time.perf_counter() - start
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        print(json.dumps([name, line, seconds, grown]), flush=True)


if __name__ == "__main__":
    main()
