"""The built-in operators, each written as an expression, and `compute` for operators of your own."""

from ekc.ir.compute_builder import Tensor
from ekc.ir.operator import compute
from ekc.ir.operators.contractions import batch_matmul, matmul, matvec
from ekc.ir.operators.conv_transpose import conv_transpose1d, conv_transpose2d, conv_transpose3d
from ekc.ir.operators.convolutions import conv1d, conv2d, conv3d
from ekc.ir.operators.einsum import einsum
from ekc.ir.operators.normalizations import layer_norm, rms_norm, softmax
from ekc.ir.operators.reductions import reduce

__all__ = [
    "Tensor",
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
