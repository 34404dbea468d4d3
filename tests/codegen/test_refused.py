"""One schedule with one mistake for every rule that a whole kernel must keep."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ekc.ir.operators as o
from ekc.codegen.generate import generate
from ekc.errors import ScheduleError
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import samples


def matmul(m: int = 8, n: int = 8, k: int = 8, dtype: str = "float32") -> Schedule:
    return Schedule(o.matmul(m, n, k, dtype=dtype))


def lanes(*factors: int, between: bool = False) -> Schedule:
    s = Schedule(o.matvec(8, 128)).split("k", factors).cache_write("y")
    names = [f"k.{i + 1}" for i in range(len(factors))]
    order = (names[0], "i", *names[1:]) if between else ("i", *names)
    s = s.reorder(*order, "k.0").bind("i", "thread.x" if between else "block.x")
    for name in names:
        s = s.bind(name, "thread.x")
    return s


def shifted(by: int) -> Schedule:
    op = o.compute("shifted", axes={"i": 8, "j": 8}, inputs={"X": (8, 12)}, body=lambda X, i, j: X[i, j + by])
    return Schedule(op).cache_read("X", "shared", vector=4)


def rows_of_threads(rows: int) -> Schedule:
    s = Schedule(o.matvec(rows, 64)).split("k", (8,)).reorder("k.0", "k.1", "i")
    return s.cache_write("y").bind("k.1", "thread.x").bind("i", "thread.x")


def softmax(rows: int, columns: int, warps: int) -> Schedule:
    s = Schedule(o.softmax((8, 64))).split("p0", (rows,)).split("p1", (columns,))
    s = s.reorder("p0.0", "p0.1", "p1.1", "p1.0").bind("p0.0", "block.x").bind("p0.1", "thread.x")
    return s.bind("p1.1", "thread.x").compute_at("total", None, warps).compute_at("top", None, warps)


MISTAKES: dict[str, tuple[Callable[[], Schedule], str]] = {
    "reduction by parts of warps": (
        lambda: softmax(3, 16, 1),
        "reduction on the spot: 48 threads, must be a multiple of 32; use 64",
    ),
    "reduction by too many warps": (
        lambda: softmax(4, 16, 4),
        "reduction on the spot: 4 warps an element, must be a divisor of 2; use 2",
    ),
    "threads": (
        lambda: matmul(64, 64).bind("i", "thread.x").bind("j", "thread.x"),
        "threads per block: 4096, at most 1024; use 1024 or fewer",
    ),
    "z": (
        lambda: matmul(128).bind("i", "thread.z"),
        "threads along z: 128, at most 64; use 64 or fewer, or bind to thread.x",
    ),
    "grid": (lambda: samples.copy(70000, 32), "grid along block.y: 70000 blocks, at most 65535; use"),
    "shared": (
        lambda: matmul(k=20000).cache_read("A", "shared"),
        "shared memory: 640000 bytes, at most 49152; use tiles",
    ),
    "registers": (
        lambda: matmul(64, 64).reorder("k", "i", "j").cache_write("C"),
        "registers: 4096, at most 231; use a smaller",
    ),
    "unrolling": (lambda: matmul(k=16384).unroll("k"), r"unrolling: 1638\d statements, at most 8192; use"),
    "order": (
        lambda: matmul().bind("j", "block.x"),
        "loop order: block loop j is inside serial loop i; call reorder",
    ),
    "accumulator": (
        lambda: matmul(dtype="float16"),
        "accumulator: C is summed in float32 and stored as float16; call cache_write",
    ),
    "atomic unheld": (
        lambda: matmul().atomic("C"),
        r'atomic C: C has no accumulator; call cache_write\("C", "register"\) first',
    ),
    "atomic vectors": (
        lambda: matmul().atomic("C").cache_write("C", vector=4),
        r'atomic C: 4 elements at once, exactly 1; write one element at a time: cache_write\("C"\)',
    ),
    "lanes unheld": (lambda: matmul().reorder("k", "i", "j").bind("k", "thread.x"), "C has no accumulator"),
    "lanes beside too many": (
        lambda: rows_of_threads(8),
        "reduction over lanes: 8 threads that run faster, must be a power of two up to 4; use 4",
    ),
    "lanes beside three": (
        lambda: rows_of_threads(3),
        "3 threads that run faster, must be a power of two up to 4; use 4",
    ),
    "lanes apart": (
        lambda: lanes(4, 2, between=True),
        r"i runs between k\.\d and k\.\d; reorder i outside of both",
    ),
    "too many lanes": (
        lambda: lanes(32, 2),
        "reduction over lanes: 64 lanes, must be a power of two up to 32; use 32",
    ),
    "half a warp": (lambda: lanes(8), "reduction over lanes: 8 threads, must be a multiple of 32"),
    "wide": (
        lambda: matmul().cache_read("A", "shared", vector=8),
        "vector width of A.shared: 32 bytes at once, at most 16; use 4 elements or fewer",
    ),
    "short row": (
        lambda: matmul(k=6).cache_read("A", "shared", vector=4),
        "vector width of A.shared: 4 elements at once, must divide a tile row of 6 neighbours; use 2$",
    ),
    "off by one": (
        lambda: shifted(1),
        "vector width of X.shared: 4 elements at once, must divide the start of every row; use 1$",
    ),
    "off by two": (
        lambda: shifted(2),
        "vector width of X.shared: 4 elements at once, must divide the start of every row; use 2$",
    ),
    "tensor row": (
        lambda: Schedule(o.matvec(8, 7)).split("k", (4,)).cache_read("x", "shared", at="k.0", vector=4),
        "vector width of x.shared: 4 elements at once, must divide a tensor row of 7; use 1$",
    ),
    "even tensor row": (
        lambda: Schedule(o.matvec(8, 6)).split("k", (4,)).cache_read("x", "shared", at="k.0", vector=4),
        "vector width of x.shared: 4 elements at once, must divide a tensor row of 6; use 2$",
    ),
    "pad": (
        lambda: matmul().cache_read("A", "shared", vector=4, pad=1),
        "vector width of A.shared: 4 elements at once, must divide the pad; use 1$",
    ),
    "even pad": (
        lambda: matmul().cache_read("A", "shared", vector=4, pad=2),
        "vector width of A.shared: 4 elements at once, must divide the pad; use 2$",
    ),
    "write": (
        lambda: matmul(n=6).reorder("k", "i", "j").cache_write("C", vector=4),
        "vector width of write of C",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_one_mistake_is_refused_by_name(name: str) -> None:
    make, message = MISTAKES[name]
    with pytest.raises(ScheduleError, match=message) as caught:
        generate(make())
    assert "\n" not in str(caught.value)
