"""Responses of real kernels and training jobs to clocks: constants fitted to other authors' recordings.

`python -m benchmarks.governor.fit_constants --data DIR` fits and prints them. Sources: Zeus' Perseus profile
of GPT-3 stages on A100 and Zeus' power-cap sweeps on A40 and V100 (ml-energy/zeus, Apache-2.0); CLBlast GEMM
over clocks on A100 (KernelTuner/kernel_tuner_tutorial, Apache-2.0); an FP32 kernel over clocks on A100 and
RTX A4000 (KernelTuner/kernel_tuner, Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelClockFit:
    """Time t of a kernel over the SM clock.

    t = (core_share x^sharpness + 1 - core_share)^(1/sharpness) with x = top clock / clock.
    """

    name: str
    core_share: float
    """Share of the time that follows the SM clock."""
    sharpness: float
    """Sharpness of the bend between SM-bound and memory-bound time."""


@dataclass(frozen=True)
class TrainingPowerFit:
    """Power of a training job, and its slowdown under power caps."""

    network: str
    batch: int
    board: str
    power_share: float
    """Power drawn without a cap, as a share of the board's power limit."""
    core_share: float | None
    """`KernelClockFit.core_share` of the slowdown under caps; None if none slowed it, or the fit failed."""


KERNEL_FITS = (
    KernelClockFit("GPT-3 forward 0", 0.686, 8),
    KernelClockFit("GPT-3 backward 0", 0.559, 8),
    KernelClockFit("GPT-3 forward 7", 0.680, 8),
    KernelClockFit("GPT-3 backward 7", 0.556, 8),
    KernelClockFit("GEMM 64-128-32-16-16-4-1-1-0", 0.614, 4),
    KernelClockFit("GEMM 64-128-32-16-16-4-1-1-1", 0.886, 3),
    KernelClockFit("GEMM 128-128-32-16-8-4-4-1-1", 0.924, 2),
    KernelClockFit("GEMM 64-128-32-16-8-4-4-0-0", 0.629, 2),
    KernelClockFit("FMA A100-PCIE-40GB", 0.983, 2),
    KernelClockFit("FMA RTX A4000", 1.000, 2),
)

_POWER_TABLE = """
shufflenetv2 A40 | 1024 0.730 0.16 | 128 0.478 0.10 | 16 0.321 - | 2048 0.713 - | 256 0.626 0.07
shufflenetv2 A40 | 32 0.349 - | 4096 0.675 0.19 | 512 0.697 0.18 | 64 0.389 - | 8 0.296 - | 8192 0.655 -
resnet50 A40 | 128 0.814 - | 16 0.803 0.32 | 192 0.800 - | 256 0.784 - | 32 0.809 0.43 | 360 0.770 -
resnet50 A40 | 512 0.779 - | 64 0.813 - | 8 0.831 0.30
deepspeech2 A40 | 128 0.576 0.71 | 16 0.628 0.21 | 192 0.559 - | 32 0.591 0.25 | 64 0.590 0.16 | 8 0.676 -
ncf A40 | 1024 0.279 - | 128 0.298 - | 16 0.298 - | 16384 0.291 - | 2048 0.280 - | 256 0.293 - | 32 0.297 -
ncf A40 | 32768 0.275 - | 4096 0.277 - | 512 0.282 - | 64 0.303 - | 8 0.302 - | 8192 0.282 -
bert_base_uncased A40 | 12 0.885 0.58 | 16 0.817 - | 24 0.891 0.34 | 32 0.868 - | 48 0.895 0.74
bert_base_uncased A40 | 56 0.897 0.48 | 72 0.888 0.63 | 8 0.740 -
shufflenetv2 V100 | 1024 0.765 1.00 | 128 0.498 0.38 | 16 0.168 - | 2048 0.731 1.00 | 256 0.719 0.62
shufflenetv2 V100 | 32 0.207 - | 4096 0.685 1.00 | 512 0.762 0.77 | 64 0.363 - | 8 0.157 -
resnet50 V100 | 128 0.890 0.74 | 16 0.893 1.00 | 192 0.882 0.78 | 256 0.881 0.76 | 32 0.909 1.00
resnet50 V100 | 360 0.870 0.78 | 64 0.892 0.71 | 8 0.883 1.00
deepspeech2 V100 | 12 0.683 0.65 | 128 0.669 1.00 | 156 0.649 1.00 | 16 0.680 0.77 | 192 0.642 1.00
deepspeech2 V100 | 2 0.622 0.44 | 24 0.790 1.00 | 32 0.818 1.00 | 4 0.612 0.42 | 48 0.782 1.00
deepspeech2 V100 | 56 0.771 1.00 | 64 0.765 1.00 | 72 0.749 1.00 | 8 0.659 0.55 | 96 0.702 1.00
ncf V100 | 1024 0.152 - | 128 0.154 - | 16 0.156 - | 16384 0.145 - | 2048 0.156 - | 256 0.160 - | 32 0.151 -
ncf V100 | 4 0.152 - | 4096 0.153 - | 512 0.151 - | 64 0.150 - | 8 0.151 - | 8192 0.147 -
bert_base_uncased V100 | 12 0.904 1.00 | 16 0.909 1.00 | 24 0.911 1.00 | 32 0.908 0.95 | 48 0.905 1.00
bert_base_uncased V100 | 56 0.907 1.00 | 8 0.863 1.00 | 128 0.894 0.96 | 64 0.882 1.00
"""
"""A network and a board, then the batch size, power share and core share of each job, "-" for None."""


def _parse_power_table() -> Iterator[TrainingPowerFit]:
    for line in _POWER_TABLE.strip().splitlines():
        job, *fits = line.split(" | ")
        network, board = job.split()
        for batch, power_share, core_share in map(str.split, fits):
            core = None if core_share == "-" else float(core_share)
            yield TrainingPowerFit(network, int(batch), board, float(power_share), core)


POWER_FITS = tuple(_parse_power_table())
