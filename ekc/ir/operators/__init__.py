"""The operators that ekc brings along, each written as an expression, and `compute` for your own."""

from ekc.ir.operators.building import Tensor, append_compute, compute
from ekc.ir.operators.contractions import batch_matmul, matmul, matvec
from ekc.ir.operators.convolutions import conv1d, conv2d, conv3d
from ekc.ir.operators.einsum import einsum
from ekc.ir.operators.normalisations import layer_norm, rms_norm, softmax
from ekc.ir.operators.reductions import reduce
from ekc.ir.operators.transposed import conv_transpose1d, conv_transpose2d, conv_transpose3d

__all__ = [
    "Tensor",
    "append_compute",
    "batch_matmul",
    "compute",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "einsum",
    "layer_norm",
    "matmul",
    "matvec",
    "reduce",
    "rms_norm",
    "softmax",
]
