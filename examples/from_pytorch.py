"""Tune a layer of a PyTorch model for a simulated A100, and put the kernel into the model.

Run:     python from_pytorch.py
Prints:  the kernel that replaces the layer, and the largest difference of the two models; one line where
         PyTorch is not installed.

The kernel becomes an operator of PyTorch, which `torch.compile` sees too. Tensors on the CPU are computed
by executing the compiled PTX: that shows what the kernel computes, not how fast it is. On a machine with a
GPU, set TARGET to "cuda:0" and move model and input to the GPU.
"""

import sys
import warnings

import ekc

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not installed (pip install torch)")
    sys.exit()

import ekc.torch

TARGET, BATCH = "a100", 32


class TunedLinear(torch.nn.Module):
    """A linear layer and the GELU behind it, as one kernel for a fixed batch."""

    def __init__(self, linear: torch.nn.Linear, batch: int) -> None:
        super().__init__()
        features_in, features_out = linear.in_features, linear.out_features
        op = ekc.matmul(batch, features_out, features_in)
        op = op.epilogue(lambda c, bias: ekc.gelu(c + bias), bias=(features_out,))
        self.result = ekc.tune(op, target=TARGET, trials=8, seed=0, progress=False)
        self.call = ekc.torch.register(self.result.compile(), "example::linear_gelu")
        # PyTorch stores the weight as [out, in]; the product takes [in, out].
        self.register_buffer("weight", linear.weight.detach().T.contiguous())
        self.register_buffer("bias", linear.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x, self.weight, self.bias)


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)  # ekc warns that tensors on the CPU are computed slowly.
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 10))
    tuned = TunedLinear(model[0], BATCH)
    replaced = torch.nn.Sequential(tuned, model[2])

    best = tuned.result.best
    print(f"{tuned.result.op}\n")
    print(
        f"on {tuned.result.device.label}: {1e6 * best.latency_s:.2f} us, {1e6 * best.energy_j:.1f} uJ, "
        f"{len(tuned.result.compile().launches)} launch(es)"
    )
    x = torch.randn(BATCH, 64)
    with torch.no_grad():
        print(f"largest difference of the two models: {(model(x) - replaced(x)).abs().max().item():.1e}")


if __name__ == "__main__":
    main()
