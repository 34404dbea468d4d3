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
        "reduction on the spot: needs 48 threads, the limit is whole warps of 32",
    ),
    "reduction by too many warps": (
        lambda: softmax(4, 16, 4),
        r"reduction on the spot: needs 4 warps an element, the limit is a divisor of 2; .* 2",
    ),
    "threads": (
        lambda: matmul(64, 64).bind("i", "thread.x").bind("j", "thread.x"),
        "threads per block: needs 4096",
    ),
    "z": (lambda: matmul(128).bind("i", "thread.z"), "threads along z: needs 128"),
    "grid": (lambda: samples.copy(70000, 32), "grid along block.y: needs 70000"),
    "shared": (lambda: matmul(k=20000).cache_read("A", "shared"), "shared memory: needs 640000 bytes"),
    "registers": (lambda: matmul(64, 64).reorder("k", "i", "j").cache_write("C"), "registers: needs 4096"),
    "unrolling": (lambda: matmul(k=16384).unroll("k"), r"unrolling: needs 1638\d statements"),
    "order": (lambda: matmul().bind("j", "block.x"), "loop order: needs block loop j outside i"),
    "accumulator": (lambda: matmul(dtype="float16"), "accumulator: needs float32 for C"),
    "atomic unheld": (
        lambda: matmul().atomic("C"),
        r'atomic C: needs an accumulator, the limit is none; .*cache_write\("C", "register"\)',
    ),
    "atomic vectors": (
        lambda: matmul().atomic("C").cache_write("C", vector=4),
        r'atomic C: needs 4 elements at once, the limit is 1 .*cache_write\("C"\), one at a time',
    ),
    "lanes unheld": (lambda: matmul().reorder("k", "i", "j").bind("k", "thread.x"), "needs an accumulator"),
    "lanes beside too many": (
        lambda: rows_of_threads(8),
        "reduction over lanes: needs 8 threads that run faster, the limit is a power of two up to 4; .* 4",
    ),
    "lanes beside three": (
        lambda: rows_of_threads(3),
        "needs 3 threads that run faster, the limit is a power of two up to 4; .* 4",
    ),
    "lanes apart": (
        lambda: lanes(4, 2, between=True),
        r"needs k\.\d and k\.\d side by side, the limit is i runs between; .* i outside of both",
    ),
    "too many lanes": (lambda: lanes(32, 2), "reduction over lanes: needs 64"),
    "half a warp": (lambda: lanes(8), "reduction over lanes: needs 8 threads, the limit is whole warps"),
    "wide": (
        lambda: matmul().cache_read("A", "shared", vector=8),
        "vector width of A.shared: needs 32 bytes at once",
    ),
    "short row": (
        lambda: matmul(k=6).cache_read("A", "shared", vector=4),
        "vector width of A.shared: needs 4 .*a tile row of 6.* choice: 2$",
    ),
    "off by one": (lambda: shifted(1), "vector width of X.shared: needs 4 .* rows .* choice: 1$"),
    "off by two": (lambda: shifted(2), "vector width of X.shared: needs 4 .* rows .* choice: 2$"),
    "tensor row": (
        lambda: Schedule(o.matvec(8, 7)).split("k", (4,)).cache_read("x", "shared", at="k.0", vector=4),
        "vector width of x.shared: needs 4 .*a tensor row of 7.* choice: 1$",
    ),
    "even tensor row": (
        lambda: Schedule(o.matvec(8, 6)).split("k", (4,)).cache_read("x", "shared", at="k.0", vector=4),
        "vector width of x.shared: needs 4 .*a tensor row of 6.* choice: 2$",
    ),
    "pad": (
        lambda: matmul().cache_read("A", "shared", vector=4, pad=1),
        "vector width of A.shared: needs 4 .*a pad .* choice: 1$",
    ),
    "even pad": (
        lambda: matmul().cache_read("A", "shared", vector=4, pad=2),
        "vector width of A.shared: needs 4 .*a pad .* choice: 2$",
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
    assert "nearest legal choice" in str(caught.value)
    assert "\n" not in str(caught.value)
