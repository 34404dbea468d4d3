"""How real kernels and training jobs answer to clocks: constants fitted to recordings by others.

`benchmarks/governor_facts.py --data DIR` fits and prints them. Sources: Zeus' Perseus profile of GPT-3 stages
on A100 and Zeus' power-cap sweeps on A40 and V100 (ml-energy/zeus, Apache-2.0); CLBlast GEMM over clocks on
A100 (KernelTuner/kernel_tuner_tutorial, Apache-2.0); an FP32 kernel over clocks on A100 and RTX A4000
(KernelTuner/kernel_tuner, Apache-2.0).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """Time over SM clock, t = (core x^sharpness + 1 - core)^(1/sharpness) with x = top clock / clock."""

    name: str
    core: float
    """What follows the core clock."""
    sharpness: float


@dataclass(frozen=True)
class Draw:
    """A training job under power caps."""

    network: str
    batch: int
    board: str
    share: float
    """Of the board's power limit, drawn without a cap."""
    core: float | None
    """What slowdown behind caps tells of `Kernel.core`; None where no cap bit or the fit was off by 5 %."""


KERNELS = (
    Kernel("GPT-3 forward 0", 0.686, 8),
    Kernel("GPT-3 backward 0", 0.559, 8),
    Kernel("GPT-3 forward 7", 0.680, 8),
    Kernel("GPT-3 backward 7", 0.556, 8),
    Kernel("GEMM 64-128-32-16-16-4-1-1-0", 0.614, 4),
    Kernel("GEMM 64-128-32-16-16-4-1-1-1", 0.886, 3),
    Kernel("GEMM 128-128-32-16-8-4-4-1-1", 0.924, 2),
    Kernel("GEMM 64-128-32-16-8-4-4-0-0", 0.629, 2),
    Kernel("FMA A100-PCIE-40GB", 0.983, 2),
    Kernel("FMA RTX A4000", 1.000, 2),
)

DRAWS = (
    Draw("shufflenetv2", 1024, "A40", 0.730, 0.16),
    Draw("shufflenetv2", 128, "A40", 0.478, 0.10),
    Draw("shufflenetv2", 16, "A40", 0.321, None),
    Draw("shufflenetv2", 2048, "A40", 0.713, None),
    Draw("shufflenetv2", 256, "A40", 0.626, 0.07),
    Draw("shufflenetv2", 32, "A40", 0.349, None),
    Draw("shufflenetv2", 4096, "A40", 0.675, 0.19),
    Draw("shufflenetv2", 512, "A40", 0.697, 0.18),
    Draw("shufflenetv2", 64, "A40", 0.389, None),
    Draw("shufflenetv2", 8, "A40", 0.296, None),
    Draw("shufflenetv2", 8192, "A40", 0.655, None),
    Draw("resnet50", 128, "A40", 0.814, None),
    Draw("resnet50", 16, "A40", 0.803, 0.32),
    Draw("resnet50", 192, "A40", 0.800, None),
    Draw("resnet50", 256, "A40", 0.784, None),
    Draw("resnet50", 32, "A40", 0.809, 0.43),
    Draw("resnet50", 360, "A40", 0.770, None),
    Draw("resnet50", 512, "A40", 0.779, None),
    Draw("resnet50", 64, "A40", 0.813, None),
    Draw("resnet50", 8, "A40", 0.831, 0.30),
    Draw("deepspeech2", 128, "A40", 0.576, 0.71),
    Draw("deepspeech2", 16, "A40", 0.628, 0.21),
    Draw("deepspeech2", 192, "A40", 0.559, None),
    Draw("deepspeech2", 32, "A40", 0.591, 0.25),
    Draw("deepspeech2", 64, "A40", 0.590, 0.16),
    Draw("deepspeech2", 8, "A40", 0.676, None),
    Draw("ncf", 1024, "A40", 0.279, None),
    Draw("ncf", 128, "A40", 0.298, None),
    Draw("ncf", 16, "A40", 0.298, None),
    Draw("ncf", 16384, "A40", 0.291, None),
    Draw("ncf", 2048, "A40", 0.280, None),
    Draw("ncf", 256, "A40", 0.293, None),
    Draw("ncf", 32, "A40", 0.297, None),
    Draw("ncf", 32768, "A40", 0.275, None),
    Draw("ncf", 4096, "A40", 0.277, None),
    Draw("ncf", 512, "A40", 0.282, None),
    Draw("ncf", 64, "A40", 0.303, None),
    Draw("ncf", 8, "A40", 0.302, None),
    Draw("ncf", 8192, "A40", 0.282, None),
    Draw("bert_base_uncased", 12, "A40", 0.885, 0.58),
    Draw("bert_base_uncased", 16, "A40", 0.817, None),
    Draw("bert_base_uncased", 24, "A40", 0.891, 0.34),
    Draw("bert_base_uncased", 32, "A40", 0.868, None),
    Draw("bert_base_uncased", 48, "A40", 0.895, 0.74),
    Draw("bert_base_uncased", 56, "A40", 0.897, 0.48),
    Draw("bert_base_uncased", 72, "A40", 0.888, 0.63),
    Draw("bert_base_uncased", 8, "A40", 0.740, None),
    Draw("shufflenetv2", 1024, "V100", 0.765, 1.00),
    Draw("shufflenetv2", 128, "V100", 0.498, 0.38),
    Draw("shufflenetv2", 16, "V100", 0.168, None),
    Draw("shufflenetv2", 2048, "V100", 0.731, 1.00),
    Draw("shufflenetv2", 256, "V100", 0.719, 0.62),
    Draw("shufflenetv2", 32, "V100", 0.207, None),
    Draw("shufflenetv2", 4096, "V100", 0.685, 1.00),
    Draw("shufflenetv2", 512, "V100", 0.762, 0.77),
    Draw("shufflenetv2", 64, "V100", 0.363, None),
    Draw("shufflenetv2", 8, "V100", 0.157, None),
    Draw("resnet50", 128, "V100", 0.890, 0.74),
    Draw("resnet50", 16, "V100", 0.893, 1.00),
    Draw("resnet50", 192, "V100", 0.882, 0.78),
    Draw("resnet50", 256, "V100", 0.881, 0.76),
    Draw("resnet50", 32, "V100", 0.909, 1.00),
    Draw("resnet50", 360, "V100", 0.870, 0.78),
    Draw("resnet50", 64, "V100", 0.892, 0.71),
    Draw("resnet50", 8, "V100", 0.883, 1.00),
    Draw("deepspeech2", 12, "V100", 0.683, 0.65),
    Draw("deepspeech2", 128, "V100", 0.669, 1.00),
    Draw("deepspeech2", 156, "V100", 0.649, 1.00),
    Draw("deepspeech2", 16, "V100", 0.680, 0.77),
    Draw("deepspeech2", 192, "V100", 0.642, 1.00),
    Draw("deepspeech2", 2, "V100", 0.622, 0.44),
    Draw("deepspeech2", 24, "V100", 0.790, 1.00),
    Draw("deepspeech2", 32, "V100", 0.818, 1.00),
    Draw("deepspeech2", 4, "V100", 0.612, 0.42),
    Draw("deepspeech2", 48, "V100", 0.782, 1.00),
    Draw("deepspeech2", 56, "V100", 0.771, 1.00),
    Draw("deepspeech2", 64, "V100", 0.765, 1.00),
    Draw("deepspeech2", 72, "V100", 0.749, 1.00),
    Draw("deepspeech2", 8, "V100", 0.659, 0.55),
    Draw("deepspeech2", 96, "V100", 0.702, 1.00),
    Draw("ncf", 1024, "V100", 0.152, None),
    Draw("ncf", 128, "V100", 0.154, None),
    Draw("ncf", 16, "V100", 0.156, None),
    Draw("ncf", 16384, "V100", 0.145, None),
    Draw("ncf", 2048, "V100", 0.156, None),
    Draw("ncf", 256, "V100", 0.160, None),
    Draw("ncf", 32, "V100", 0.151, None),
    Draw("ncf", 4, "V100", 0.152, None),
    Draw("ncf", 4096, "V100", 0.153, None),
    Draw("ncf", 512, "V100", 0.151, None),
    Draw("ncf", 64, "V100", 0.150, None),
    Draw("ncf", 8, "V100", 0.151, None),
    Draw("ncf", 8192, "V100", 0.147, None),
    Draw("bert_base_uncased", 12, "V100", 0.904, 1.00),
    Draw("bert_base_uncased", 16, "V100", 0.909, 1.00),
    Draw("bert_base_uncased", 24, "V100", 0.911, 1.00),
    Draw("bert_base_uncased", 32, "V100", 0.908, 0.95),
    Draw("bert_base_uncased", 48, "V100", 0.905, 1.00),
    Draw("bert_base_uncased", 56, "V100", 0.907, 1.00),
    Draw("bert_base_uncased", 8, "V100", 0.863, 1.00),
    Draw("bert_base_uncased", 128, "V100", 0.894, 0.96),
    Draw("bert_base_uncased", 64, "V100", 0.882, 1.00),
)
