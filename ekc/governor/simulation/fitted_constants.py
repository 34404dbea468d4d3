"""Responses of real kernels and training jobs to clocks: constants fitted to other authors' recordings.

`python -m benchmarks.governor.fit_constants --data DIR` fits and prints them. Sources: Zeus' Perseus profile
of GPT-3 stages on A100 and Zeus' power-cap sweeps on A40 and V100 (ml-energy/zeus, Apache-2.0); CLBlast GEMM
over clocks on A100 (KernelTuner/kernel_tuner_tutorial, Apache-2.0); an FP32 kernel over clocks on A100 and
RTX A4000 (KernelTuner/kernel_tuner, Apache-2.0).
"""

from __future__ import annotations

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

POWER_FITS = (
    TrainingPowerFit("shufflenetv2", 1024, "A40", 0.730, 0.16),
    TrainingPowerFit("shufflenetv2", 128, "A40", 0.478, 0.10),
    TrainingPowerFit("shufflenetv2", 16, "A40", 0.321, None),
    TrainingPowerFit("shufflenetv2", 2048, "A40", 0.713, None),
    TrainingPowerFit("shufflenetv2", 256, "A40", 0.626, 0.07),
    TrainingPowerFit("shufflenetv2", 32, "A40", 0.349, None),
    TrainingPowerFit("shufflenetv2", 4096, "A40", 0.675, 0.19),
    TrainingPowerFit("shufflenetv2", 512, "A40", 0.697, 0.18),
    TrainingPowerFit("shufflenetv2", 64, "A40", 0.389, None),
    TrainingPowerFit("shufflenetv2", 8, "A40", 0.296, None),
    TrainingPowerFit("shufflenetv2", 8192, "A40", 0.655, None),
    TrainingPowerFit("resnet50", 128, "A40", 0.814, None),
    TrainingPowerFit("resnet50", 16, "A40", 0.803, 0.32),
    TrainingPowerFit("resnet50", 192, "A40", 0.800, None),
    TrainingPowerFit("resnet50", 256, "A40", 0.784, None),
    TrainingPowerFit("resnet50", 32, "A40", 0.809, 0.43),
    TrainingPowerFit("resnet50", 360, "A40", 0.770, None),
    TrainingPowerFit("resnet50", 512, "A40", 0.779, None),
    TrainingPowerFit("resnet50", 64, "A40", 0.813, None),
    TrainingPowerFit("resnet50", 8, "A40", 0.831, 0.30),
    TrainingPowerFit("deepspeech2", 128, "A40", 0.576, 0.71),
    TrainingPowerFit("deepspeech2", 16, "A40", 0.628, 0.21),
    TrainingPowerFit("deepspeech2", 192, "A40", 0.559, None),
    TrainingPowerFit("deepspeech2", 32, "A40", 0.591, 0.25),
    TrainingPowerFit("deepspeech2", 64, "A40", 0.590, 0.16),
    TrainingPowerFit("deepspeech2", 8, "A40", 0.676, None),
    TrainingPowerFit("ncf", 1024, "A40", 0.279, None),
    TrainingPowerFit("ncf", 128, "A40", 0.298, None),
    TrainingPowerFit("ncf", 16, "A40", 0.298, None),
    TrainingPowerFit("ncf", 16384, "A40", 0.291, None),
    TrainingPowerFit("ncf", 2048, "A40", 0.280, None),
    TrainingPowerFit("ncf", 256, "A40", 0.293, None),
    TrainingPowerFit("ncf", 32, "A40", 0.297, None),
    TrainingPowerFit("ncf", 32768, "A40", 0.275, None),
    TrainingPowerFit("ncf", 4096, "A40", 0.277, None),
    TrainingPowerFit("ncf", 512, "A40", 0.282, None),
    TrainingPowerFit("ncf", 64, "A40", 0.303, None),
    TrainingPowerFit("ncf", 8, "A40", 0.302, None),
    TrainingPowerFit("ncf", 8192, "A40", 0.282, None),
    TrainingPowerFit("bert_base_uncased", 12, "A40", 0.885, 0.58),
    TrainingPowerFit("bert_base_uncased", 16, "A40", 0.817, None),
    TrainingPowerFit("bert_base_uncased", 24, "A40", 0.891, 0.34),
    TrainingPowerFit("bert_base_uncased", 32, "A40", 0.868, None),
    TrainingPowerFit("bert_base_uncased", 48, "A40", 0.895, 0.74),
    TrainingPowerFit("bert_base_uncased", 56, "A40", 0.897, 0.48),
    TrainingPowerFit("bert_base_uncased", 72, "A40", 0.888, 0.63),
    TrainingPowerFit("bert_base_uncased", 8, "A40", 0.740, None),
    TrainingPowerFit("shufflenetv2", 1024, "V100", 0.765, 1.00),
    TrainingPowerFit("shufflenetv2", 128, "V100", 0.498, 0.38),
    TrainingPowerFit("shufflenetv2", 16, "V100", 0.168, None),
    TrainingPowerFit("shufflenetv2", 2048, "V100", 0.731, 1.00),
    TrainingPowerFit("shufflenetv2", 256, "V100", 0.719, 0.62),
    TrainingPowerFit("shufflenetv2", 32, "V100", 0.207, None),
    TrainingPowerFit("shufflenetv2", 4096, "V100", 0.685, 1.00),
    TrainingPowerFit("shufflenetv2", 512, "V100", 0.762, 0.77),
    TrainingPowerFit("shufflenetv2", 64, "V100", 0.363, None),
    TrainingPowerFit("shufflenetv2", 8, "V100", 0.157, None),
    TrainingPowerFit("resnet50", 128, "V100", 0.890, 0.74),
    TrainingPowerFit("resnet50", 16, "V100", 0.893, 1.00),
    TrainingPowerFit("resnet50", 192, "V100", 0.882, 0.78),
    TrainingPowerFit("resnet50", 256, "V100", 0.881, 0.76),
    TrainingPowerFit("resnet50", 32, "V100", 0.909, 1.00),
    TrainingPowerFit("resnet50", 360, "V100", 0.870, 0.78),
    TrainingPowerFit("resnet50", 64, "V100", 0.892, 0.71),
    TrainingPowerFit("resnet50", 8, "V100", 0.883, 1.00),
    TrainingPowerFit("deepspeech2", 12, "V100", 0.683, 0.65),
    TrainingPowerFit("deepspeech2", 128, "V100", 0.669, 1.00),
    TrainingPowerFit("deepspeech2", 156, "V100", 0.649, 1.00),
    TrainingPowerFit("deepspeech2", 16, "V100", 0.680, 0.77),
    TrainingPowerFit("deepspeech2", 192, "V100", 0.642, 1.00),
    TrainingPowerFit("deepspeech2", 2, "V100", 0.622, 0.44),
    TrainingPowerFit("deepspeech2", 24, "V100", 0.790, 1.00),
    TrainingPowerFit("deepspeech2", 32, "V100", 0.818, 1.00),
    TrainingPowerFit("deepspeech2", 4, "V100", 0.612, 0.42),
    TrainingPowerFit("deepspeech2", 48, "V100", 0.782, 1.00),
    TrainingPowerFit("deepspeech2", 56, "V100", 0.771, 1.00),
    TrainingPowerFit("deepspeech2", 64, "V100", 0.765, 1.00),
    TrainingPowerFit("deepspeech2", 72, "V100", 0.749, 1.00),
    TrainingPowerFit("deepspeech2", 8, "V100", 0.659, 0.55),
    TrainingPowerFit("deepspeech2", 96, "V100", 0.702, 1.00),
    TrainingPowerFit("ncf", 1024, "V100", 0.152, None),
    TrainingPowerFit("ncf", 128, "V100", 0.154, None),
    TrainingPowerFit("ncf", 16, "V100", 0.156, None),
    TrainingPowerFit("ncf", 16384, "V100", 0.145, None),
    TrainingPowerFit("ncf", 2048, "V100", 0.156, None),
    TrainingPowerFit("ncf", 256, "V100", 0.160, None),
    TrainingPowerFit("ncf", 32, "V100", 0.151, None),
    TrainingPowerFit("ncf", 4, "V100", 0.152, None),
    TrainingPowerFit("ncf", 4096, "V100", 0.153, None),
    TrainingPowerFit("ncf", 512, "V100", 0.151, None),
    TrainingPowerFit("ncf", 64, "V100", 0.150, None),
    TrainingPowerFit("ncf", 8, "V100", 0.151, None),
    TrainingPowerFit("ncf", 8192, "V100", 0.147, None),
    TrainingPowerFit("bert_base_uncased", 12, "V100", 0.904, 1.00),
    TrainingPowerFit("bert_base_uncased", 16, "V100", 0.909, 1.00),
    TrainingPowerFit("bert_base_uncased", 24, "V100", 0.911, 1.00),
    TrainingPowerFit("bert_base_uncased", 32, "V100", 0.908, 0.95),
    TrainingPowerFit("bert_base_uncased", 48, "V100", 0.905, 1.00),
    TrainingPowerFit("bert_base_uncased", 56, "V100", 0.907, 1.00),
    TrainingPowerFit("bert_base_uncased", 8, "V100", 0.863, 1.00),
    TrainingPowerFit("bert_base_uncased", 128, "V100", 0.894, 0.96),
    TrainingPowerFit("bert_base_uncased", 64, "V100", 0.882, 1.00),
)
