"""The operators that are measured, by name, the most informative first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import ekc
from ekc.ir.operator import Operator

DTYPES = ("float32", "tf32", "float16", "bfloat16", "int8")


@dataclass(frozen=True)
class Item:
    """An operator that is compared with a library."""

    name: str
    op: Operator
    kind: str
    """"matmul", "matvec" or "conv2d": which call of a library computes it."""
    padding: int = 0
    stride: int = 1
    triton: bool = False
    """Whether PyTorch's Triton replaces the library: it takes half a minute to tune."""

    @property
    def row(self) -> str:
        """Name of the row of `versus`, where one operator is compared twice."""
        return f"{self.name}, Triton" if self.triton else self.name


def make_matmul(m: int, n: int, k: int, dtype: str, where: str = "") -> Item:
    size = f"{m}^3" if m == n == k else f"{m}x{n}x{k}"
    name = f"MM {size} {dtype}" + (f" ({where})" if where else "")
    return Item(name, ekc.matmul(m, n, k, dtype=dtype), "matmul")


def make_matvec(m: int, k: int, dtype: str, where: str = "") -> Item:
    name = f"MV {m}x{k} {dtype}" + (f" ({where})" if where else "")
    return Item(name, ekc.matvec(m, k, dtype=dtype), "matvec")


def make_conv(n: int, c: int, side: int, out: int, kernel: int, stride: int, dtype: str) -> Item:
    """A convolution of ResNet-50 (He et al. 2015, table 1, the stride on the 3x3)."""
    padding = kernel // 2
    op = ekc.conv2d(
        n, c, side, side, out_channels=out, kernel=kernel, stride=stride, padding=padding, dtype=dtype
    )
    name = f"conv {n}x{c}x{side}x{side} {kernel}x{kernel}/{stride} -> {out} {dtype} (ResNet-50)"
    return Item(name, op, "conv2d", padding, stride)


def list_versus_items() -> Iterator[Item]:
    """Every item that is compared with a library, most valuable first. Made one by one: an operator is cheap,
    its reference is not."""
    yield make_matmul(4096, 4096, 4096, "float32")
    yield make_matmul(4096, 4096, 4096, "float16")
    yield make_matvec(4096, 4096, "float32")
    yield make_conv(1, 64, 56, 64, 3, 1, "float32")
    yield make_matmul(1024, 1024, 1024, "float32")
    yield make_matmul(4096, 4096, 4096, "bfloat16")
    yield make_matmul(4096, 4096, 4096, "tf32")
    yield make_matmul(512, 4096, 4096, "float16", "Llama-3-8B, attention")
    yield make_matmul(128, 768, 768, "float32", "BERT-base, attention")
    yield make_matvec(14336, 4096, "float16", "Llama-3-8B, decode")
    yield make_conv(16, 256, 14, 256, 3, 1, "float32")
    # Behind what is most telling, as each takes as long as several of those; behind all they never came.
    yield replace(make_matmul(4096, 4096, 4096, "float32"), triton=True)
    yield replace(make_matmul(4096, 4096, 4096, "float16"), triton=True)
    for side in (2048, 512, 8192):
        for dtype in ("float32", "float16"):
            yield make_matmul(side, side, side, dtype)
    yield make_matmul(128, 3072, 768, "float16", "BERT-base, feed-forward")
    yield make_matmul(512, 14336, 4096, "float16", "Llama-3-8B, feed-forward")
    yield make_conv(1, 256, 56, 64, 1, 1, "float32")
    yield make_conv(1, 512, 7, 512, 3, 1, "float32")
    yield make_conv(1, 3, 224, 64, 7, 2, "float32")
    yield make_conv(1, 128, 56, 128, 3, 2, "float16")
    for side in (1024, 2048, 512, 8192):
        for dtype in ("tf32", "bfloat16"):
            yield make_matmul(side, side, side, dtype)
    yield make_matmul(1024, 1024, 1024, "float16")


def list_small_items() -> Iterator[Item]:
    """Items of a dry run."""
    yield make_matmul(64, 64, 64, "float32")
    yield make_matvec(256, 256, "float32")


def list_recorded_items() -> tuple[Item, ...]:
    """Items of which schedules are recorded, packed and tuned, most telling first."""
    return (
        make_matmul(2048, 2048, 2048, "float32"),
        make_conv(1, 64, 56, 64, 3, 1, "float32"),
        make_matvec(4096, 4096, "float32"),
        make_matmul(2048, 2048, 2048, "float16"),
    )


Maker = Callable[[str], Operator]
CHECKED: dict[str, Maker] = {
    "matmul": lambda t: ekc.matmul(96, 80, 112, dtype=t),
    "matmul, both transposed": lambda t: ekc.matmul(48, 64, 40, dtype=t, transpose_a=True, transpose_b=True),
    "conv2d": lambda t: ekc.conv2d(2, 8, 14, 14, out_channels=16, kernel=3, padding=1, dtype=t),
    "softmax": lambda t: ekc.softmax((12, 300), dtype=t),
    "batch_matmul": lambda t: ekc.batch_matmul(3, 32, 48, 40, dtype=t),
    "matvec": lambda t: ekc.matvec(130, 300, dtype=t),
    "layer_norm": lambda t: ekc.layer_norm((12, 300), dtype=t),
    "rms_norm": lambda t: ekc.rms_norm((12, 300), dtype=t),
    "reduce, sum": lambda t: ekc.reduce((12, 300), (1,), "sum", dtype=t),
    "reduce, max": lambda t: ekc.reduce((12, 300), (1,), "max", dtype=t),
    "conv2d, strided, grouped, NHWC": lambda t: ekc.conv2d(
        1, 8, 13, 13, out_channels=8, kernel=3, stride=2, padding=1, groups=2, layout="NHWC", dtype=t
    ),
    "conv2d, 64 channels, NHWC": lambda t: ekc.conv2d(
        2, 64, 7, 7, out_channels=64, kernel=3, padding=1, layout="NHWC", dtype=t
    ),
    "conv1d": lambda t: ekc.conv1d(2, 8, 50, out_channels=8, kernel=3, padding=1, dtype=t),
    "conv3d": lambda t: ekc.conv3d(1, 4, 6, 8, 8, out_channels=4, kernel=3, padding=1, dtype=t),
    "conv_transpose1d": lambda t: ekc.conv_transpose1d(1, 4, 20, out_channels=4, kernel=4, stride=2, dtype=t),
    "conv_transpose2d": lambda t: ekc.conv_transpose2d(
        1, 4, 9, 9, out_channels=4, kernel=3, stride=2, padding=1, dtype=t
    ),
    "conv_transpose3d": lambda t: ekc.conv_transpose3d(
        1, 2, 4, 5, 5, out_channels=2, kernel=3, stride=2, padding=1, dtype=t
    ),
    "einsum": lambda t: ekc.einsum("bmk,bkn->bmn", (2, 32, 24), (2, 24, 40), dtype=t),
}
"""Every kind of operator, small and ragged."""
