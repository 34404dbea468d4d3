"""Small versions of three models, written in plain torch.nn, so that every kernel can be emulated."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; .ci/run installs a build for the CPU")
F, nn = torch.nn.functional, torch.nn


class BasicBlock(nn.Module):
    """Two convolutions with batch norm, and a convolution of one pixel beside them."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.down = nn.Conv2d(channels, out, 1, stride, bias=False)
        self.bn3 = nn.BatchNorm2d(out)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.bn3(self.down(x)))


class ResNet(nn.Module):
    """A ResNet of one block, for images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, 1, 1)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.block = BasicBlock(4, 8, 2)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        y = self.block(self.pool(F.relu(self.stem(x))))
        return self.fc(y.mean((2, 3)))


class BertLayer(nn.Module):
    """An encoder layer as in BERT: hidden 32, 2 heads."""

    def __init__(self, hidden: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.norm1, self.norm2 = (nn.LayerNorm(hidden, eps=1e-12) for _ in range(2))
        self.up, self.down = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)

    def split(self, x: Any) -> Any:
        batch, length, hidden = x.shape
        return x.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)

    def forward(self, hidden_states: Any, attention_mask: Any = None) -> Any:
        q, k, v = (self.split(part(hidden_states)) for part in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        attended = attended.transpose(1, 2).reshape(hidden_states.shape)
        x = self.norm1(self.out(attended) + hidden_states)
        return {"last_hidden_state": self.norm2(self.down(F.gelu(self.up(x))) + x)}


class RmsNorm(nn.Module):
    """The norm of Llama, computed in float32."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Any) -> Any:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def rotate_half(x: Any) -> Any:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class LlamaBlock(nn.Module):
    """A block as in Llama: hidden 32, 4 heads, 2 of keys and values."""

    def __init__(self, hidden: int = 32, heads: int = 4, shared: int = 2, length: int = 6) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, hidden // heads
        self.q_proj = nn.Linear(hidden, heads * self.size, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(hidden, shared * self.size, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = (nn.Linear(hidden, 48, bias=False) for _ in range(2))
        self.down = nn.Linear(48, hidden, bias=False)
        self.norm1, self.norm2 = RmsNorm(hidden), RmsNorm(hidden)
        angles = torch.outer(torch.arange(length), 1e4 ** -torch.linspace(0, 1, self.size // 2))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos())
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        y = self.norm1(x)
        q = self.q_proj(y).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(y).view(batch, length, self.shared, self.size).transpose(1, 2)
        v = self.v_proj(y).view(batch, length, self.shared, self.size).transpose(1, 2)
        q, k = (one * self.cos + rotate_half(one) * self.sin for one in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def make_models() -> dict[str, tuple[Any, Any]]:
    """Name -> (module in evaluation mode, example inputs)."""
    torch.manual_seed(0)
    resnet, bert, llama = ResNet(), BertLayer(), LlamaBlock()
    for part in resnet.modules():
        if isinstance(part, nn.BatchNorm2d):
            # As after training: not the mean 0 and variance 1 of a new layer.
            part.running_mean.uniform_(-0.5, 0.5)
            part.running_var.uniform_(0.5, 2.0)
            part.weight.data.uniform_(0.5, 1.5)
            part.bias.data.uniform_(-0.5, 0.5)
    mask = torch.zeros(1, 1, 1, 8)
    mask[..., 6:] = float("-inf")
    return {
        "resnet": (resnet.eval(), (torch.randn(1, 3, 8, 8),)),
        "bert": (bert.eval(), {"hidden_states": torch.randn(1, 8, 32), "attention_mask": mask}),
        "llama": (llama.eval(), (torch.randn(1, 6, 32),)),
    }


def convert(module: Any, inputs: Any, dtype: Any) -> tuple[Any, Any]:
    """A model and its example inputs in another type."""
    if isinstance(inputs, dict):
        return module.to(dtype), {name: x.to(dtype) for name, x in inputs.items()}
    return module.to(dtype), tuple(x.to(dtype) for x in inputs)


def call(module: Any, inputs: Any) -> Any:
    """The tensor that a module gives for inputs by position or by name."""
    result = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
    return result["last_hidden_state"] if isinstance(result, dict) else result
