"""One mistake each in steps that move data, with the words that must tell it."""

from __future__ import annotations

from tests.ir.mistakes_in_loops import Case
from tests.ir.starts import chain, product, read_twice, staged, summed_first, vectored

STAGING_MISTAKES: dict[str, Case] = {
    "pipeline nothing": (
        lambda: product().pipeline("k"),
        "pipeline",
        "shared staging in k",
        "none",
        "cache_read",
    ),
    "pipeline unknown": (lambda: staged().pipeline("k.O"), "pipeline", "'k.O'", "k.0", "'k.[01]'"),
    "pipeline 3": (lambda: staged().pipeline("k.0", 3), "pipeline k.0", "3 stages", "1 or 2", "2"),
    "pipeline produced": (
        lambda: chain().compute_at("T", "k").pipeline("k"),
        "pipeline",
        "copied",
        "computed",
        "as it is",
    ),
    "cache_read tensor": (lambda: product().cache_read("AA", "shared"), "cache_read", "'AA'", "A, B", "'A'"),
    "cache_read scope": (
        lambda: product().cache_read("A", "shred"),
        "cache_read",
        "'shred'",
        "shared, register",
        "'shared'",
    ),
    "cache_read reader": (
        lambda: chain().cache_read("X", "register", reader="C"),
        "cache_read",
        "X read for 'C'",
        "it is read for T",
        "'T'",
    ),
    "cache_read at": (
        lambda: product().cache_read("A", "shared", at="k.0"),
        "cache_read",
        "at='k.0'",
        "i, j, k",
        "'k'",
    ),
    "cache_read bound": (
        lambda: product().bind("i", "block.x").cache_read("A", "shared", at="i"),
        "cache_read",
        "at='i'",
        "j, k",
        "'[jk]'",
    ),
    "cache_read vector": (
        lambda: product().cache_read("A", "shared", vector=3),
        "cache_read A.shared",
        "3",
        "1, 2, 4, 8 or 16",
        "4",
    ),
    "cache_read pad": (
        lambda: product().cache_read("A", "shared", pad=-1),
        "cache_read A.shared",
        "-1 as pad",
        "at least 0",
        "0",
    ),
    "cache_read order": (
        lambda: product().cache_read("A", "shared", order=(0, 2)),
        "cache_read",
        r"\(0, 2\)",
        "permutation",
        r"\(0, 1\)",
    ),
    "cache_read again": (
        lambda: staged().cache_read("A", "shared"),
        "cache_read",
        "a new A.shared",
        "exists",
        "compute_at",
    ),
    "cache_read around": (
        lambda: product().cache_read("A", "shared").cache_read("A", "register"),
        "cache_read",
        "global",
        "A.shared stands",
        "'A.shared'",
    ),
    "cache_read upward": (
        lambda: product().cache_read("A", "register").cache_read("A.register", "shared"),
        "cache_read",
        "shared",
        "registers of one thread",
        "cache_read",
    ),
    "cache_read twice shared": (
        lambda: product().cache_read("A", "shared").cache_read("A.shared", "shared"),
        "cache_read",
        "A.shared",
        "exists already",
        "compute_at",
    ),
    "cache_read outside": (
        lambda: product().cache_read("A", "shared", at="k").cache_read("A.shared", "register", at="i"),
        "cache_read",
        "'i' inside 'k'",
        "filled",
        "'k'",
    ),
    "cache_read in a vector": (
        lambda: vectored().cache_read("A", "shared", at="j.1"),
        "cache_read",
        "at='j.1'",
        "serial",
        "'j.0'",
    ),
    "cache_write tensor": (lambda: product().cache_write("A"), "cache_write", "'A'", "outputs C", "'C'"),
    "cache_write scope": (
        lambda: product().cache_write("C", "shared"),
        "cache_write",
        "'shared'",
        "registers",
        "'register'",
    ),
    "cache_write again": (
        lambda: product().cache_write("C").cache_write("C"),
        "cache_write",
        "not yet held",
        "exists",
        "second out",
    ),
    "cache_write vector": (
        lambda: product().cache_write("C", vector=5),
        "cache_write C",
        "5",
        "1, 2, 4, 8 or 16",
        "4",
    ),
    "compute_at unknown": (
        lambda: product().compute_at("Z", "k"),
        "compute_at",
        "'Z'",
        "nothing movable",
        "cache_read first",
    ),
    "compute_at nearest": (
        lambda: staged().compute_at("A.shred", "k.0"),
        "compute_at",
        "'A.shred'",
        "A.shared, A.register",
        "'A.shared'",
    ),
    "compute_at loop": (
        lambda: staged().compute_at("A.shared", "q"),
        "compute_at",
        "at='q'",
        "k.0, k.1, i, j",
        "'.+'",
    ),
    "compute_at inwards": (
        lambda: staged().compute_at("A.shared", "i"),
        "compute_at",
        "'i' outside 'k.1'",
        "A.register reads",
        "'k.1'",
    ),
    "compute_at outwards": (
        lambda: staged().compute_at("A.register", None),
        "compute_at",
        "None inside 'k.0'",
        "filled",
        "'k.0'",
    ),
    "compute_at warps": (
        lambda: summed_first().compute_at("C", "q", warps=0),
        "compute_at C",
        "0 warps",
        "at least 1",
        "1",
    ),
    "compute_at of a source": (
        lambda: read_twice().compute_at("U", None).compute_at("T", "i"),
        "compute_at",
        "T at 'i' outside U at None",
        "U is computed from it",
        "at=None",
    ),
    "compute_at moved inwards": (
        lambda: (
            read_twice()
            .split("i", (2,))
            .compute_at("U", "i.0")
            .compute_at("T", "i.0")
            .compute_at("T.shared", "i.1")
        ),
        "compute_at",
        "T at 'i.1' outside U at 'i.0'",
        "U is computed from it",
        "at='i.0'",
    ),
    "compute_at moved outwards": (
        lambda: read_twice().compute_at("U", "i").compute_at("T", "i").compute_at("U.shared", None),
        "compute_at",
        "T at 'i' outside U at None",
        "U is computed from it",
        "at=None",
    ),
    "reorder of sources": (
        lambda: (
            read_twice().split("i", (2,)).compute_at("U", "i.1").compute_at("T", "i.0").reorder("i.1", "i.0")
        ),
        "reorder",
        "i.0 outside i.1",
        "U is computed from T",
        "before compute_at",
    ),
    "compute_at scheduled": (
        lambda: chain().split("p", (2,)).compute_at("T", "k"),
        "compute_at",
        "not yet scheduled",
        "changed",
        "first",
    ),
    "compute_at read twice": (
        lambda: read_twice().compute_at("T", "i"),
        "compute_at",
        "T read in one nest",
        "2 read it",
        "other readers first",
    ),
    "compute_at copied": (
        lambda: chain().cache_read("T", "register", at="k").compute_at("T", "k"),
        "compute_at",
        "not yet copied",
        "T.register",
        "compute_at",
    ),
    "compute_at pipelined": (
        lambda: chain().cache_read("B", "shared", at="k").pipeline("k").compute_at("T", "k"),
        "compute_at T",
        "2 stages",
        "1",
        "1",
    ),
}
