"""Kernels in PyTorch: as operators, and as the layers of a whole module.

Nothing else in ekc imports this package, and PyTorch is no dependency.

>>> import ekc.torch
>>> gemm = ekc.torch.register(kernel, "mine::gemm")
>>> c = gemm(a, b)                   # or torch.ops.mine.gemm(a, b), also under torch.compile
>>> fast = ekc.torch.compile(module, records="tuning.db", target="cuda:0", example_inputs=(x,))
>>> y = fast(x)                      # inference only
>>> print(fast)                      # layers that are kernels, and layers that PyTorch computes
"""

try:
    import torch as torch
except ImportError as problem:
    reason = str(problem).partition("\n")[0]
    raise ImportError(f"ekc.torch needs PyTorch ({reason}): pip install torch") from None

from ekc.torch.backend import counts, register_backend
from ekc.torch.compiled_module import CompiledModule
from ekc.torch.layer_check import check
from ekc.torch.operators import register
from ekc.torch.replace_layers import compile

__all__ = ["CompiledModule", "check", "compile", "counts", "register"]

register_backend()
