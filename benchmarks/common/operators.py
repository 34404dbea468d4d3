"""The operators that most benchmarks tune, by the names that they print."""

from __future__ import annotations

from collections.abc import Callable

import ekc

_FACTORIES: dict[str, Callable[[], ekc.Operator]] = {
    "MM 1024^3": lambda: ekc.matmul(1024, 1024, 1024),
    "MM 512x3072x768": lambda: ekc.matmul(512, 3072, 768),
    "MV 4096x4096": lambda: ekc.matvec(4096, 4096),
    "MV 1024x8192": lambda: ekc.matvec(1024, 8192),
    "conv 1x64x56x56 3x3 -> 64": lambda: ekc.conv2d(1, 64, 56, 56, out_channels=64, kernel=3, padding=1),
    "conv 16x256x14x14 3x3 -> 256": lambda: ekc.conv2d(
        16, 256, 14, 14, out_channels=256, kernel=3, padding=1
    ),
    "MM 127x255x63": lambda: ekc.matmul(127, 255, 63),
    "fp16 MM 512^3": lambda: ekc.matmul(512, 512, 512, dtype="float16"),
}

OPERATORS = {
    name: make for name, make in _FACTORIES.items() if name not in ("MM 512x3072x768", "MV 1024x8192")
}
"""The six operators of the main job, one of odd sizes and one of float16 among them."""
PAPER_OPERATORS = {
    name: make for name, make in _FACTORIES.items() if name not in ("MM 127x255x63", "fp16 MM 512^3")
}
"""The six operators of the ablations: two matrix products, two matrix-vector products, two convolutions."""
