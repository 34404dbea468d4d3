"""Models with random weights, or without any on the meta device, to be read by ekc.

ResNet-50, MobileNetV3 and ViT are written out with the names of torchvision; BERT and Llama are those of
`transformers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Example:
    """A module in inference, its inputs by name, and the type to read it as."""

    module: nn.Module
    inputs: Mapping[str, Any]
    dtype: str | None = None


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1, and the shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != 4 * width:
            shortcut = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    """He et al. 2015; [3, 4, 6, 3] blocks of width 64 are ResNet-50."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = width
        for i, count in enumerate(blocks):
            inner = width * 2**i
            layer = [Bottleneck(channels, inner, 1 if i == 0 else 2)]
            layer += [Bottleneck(4 * inner, inner, 1) for _ in range(count - 1)]
            setattr(self, f"layer{i + 1}", nn.Sequential(*layer))
            channels = 4 * inner
        self.stages = len(blocks)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for i in range(self.stages):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class SqueezeExcitation(nn.Module):
    """A weight for each channel, from the mean of all."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, inner, 1)
        self.fc2 = nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.hardsigmoid(self.fc2(F.relu(self.fc1(self.avgpool(x))))) * x


def conv_norm(
    channels: int, out: int, kernel: int, stride: int, groups: int, activation: Any
) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out, eps=0.001), *([activation()] if activation else []))


class InvertedResidual(nn.Module):
    """Expand, depthwise, squeeze-and-excitation, project."""

    def __init__(
        self, c: int, kernel: int, wide: int, out: int, se: bool, hardswish: bool, stride: int
    ) -> None:
        super().__init__()
        act = nn.Hardswish if hardswish else nn.ReLU
        layers = [conv_norm(c, wide, 1, 1, 1, act)] if wide != c else []
        layers.append(conv_norm(wide, wide, kernel, stride, wide, act))
        if se:
            inner = max(8, (wide // 4 + 4) // 8 * 8)
            layers.append(SqueezeExcitation(wide, inner))
        layers.append(conv_norm(wide, out, 1, 1, 1, None))
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and c == out

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        return x + y if self.residual else y


MOBILENET_LARGE = (
    (16, 3, 16, 16, False, False, 1), (16, 3, 64, 24, False, False, 2), (24, 3, 72, 24, False, False, 1),
    (24, 5, 72, 40, True, False, 2), (40, 5, 120, 40, True, False, 1), (40, 5, 120, 40, True, False, 1),
    (40, 3, 240, 80, False, True, 2), (80, 3, 200, 80, False, True, 1), (80, 3, 184, 80, False, True, 1),
    (80, 3, 184, 80, False, True, 1), (80, 3, 480, 112, True, True, 1), (112, 3, 672, 112, True, True, 1),
    (112, 5, 672, 160, True, True, 2), (160, 5, 960, 160, True, True, 1), (160, 5, 960, 160, True, True, 1),
)  # fmt: skip
"""Howard et al. 2019, table 1: channels, kernel, expanded, out, squeeze-and-excitation, hardswish, stride."""


class MobileNetV3(nn.Module):
    """Howard et al. 2019."""

    def __init__(self, rows: tuple[tuple[Any, ...], ...] = MOBILENET_LARGE, last: int = 1280) -> None:
        super().__init__()
        wide = 6 * rows[-1][3]
        self.features = nn.Sequential(
            conv_norm(3, rows[0][0], 3, 2, 1, nn.Hardswish),
            *(InvertedResidual(*row) for row in rows),
            conv_norm(rows[-1][3], wide, 1, 1, 1, nn.Hardswish),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(wide, last),
            nn.Hardswish(inplace=True),
            nn.Dropout(0.2, inplace=True),
            nn.Linear(last, 1000),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class EncoderBlock(nn.Module):
    """Norm before attention and before the two dense layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class VisionTransformer(nn.Module):
    """Dosovitskiy et al. 2020; ViT-B/16 by default."""

    def __init__(
        self, size: int = 224, patch: int = 16, width: int = 768, heads: int = 12, layers: int = 12
    ) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.pos_embedding = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.1)
        self.layers = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(layers)))
        self.ln = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_proj(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1)
        return self.head(self.ln(self.layers(x + self.pos_embedding))[:, 0])


class ResidualBlock(nn.Module):
    """A block of the U-Net of Ho et al. 2020: norm, SiLU and convolution twice, the time between."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(32, channels)
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.norm2 = nn.GroupNorm(32, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class SpatialAttention(nn.Module):
    """Every place attends to every other."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (t.view(n, h * w, self.heads, -1).transpose(1, 2) for t in self.qkv(y).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        return x + self.proj(y).transpose(1, 2).reshape(n, c, h, w)


class UNetBlock(nn.Module):
    """A step down and up again: residual blocks, attention, upsampling and the skip connection."""

    def __init__(self, channels: int = 320, heads: int = 5, time: int = 1280) -> None:
        super().__init__()
        self.enter = ResidualBlock(channels, channels, time)
        self.down = nn.Conv2d(channels, channels, 3, 2, 1)
        self.middle = ResidualBlock(channels, 2 * channels, time)
        self.attention = SpatialAttention(2 * channels, heads)
        self.up = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1)
        self.leave = ResidualBlock(3 * channels, channels, time)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        skip = self.enter(x, time)
        y = self.attention(self.middle(self.down(skip), time))
        y = self.up(F.interpolate(y, scale_factor=2.0, mode="nearest"))
        return self.leave(torch.cat([y, skip], dim=1), time)


class LastHidden(nn.Module):
    """The first output of a model of `transformers`."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids, return_dict=False, **self.options)[0]


class Decode(nn.Module):
    """One more token of a Llama, with keys and values of those before it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, position_ids: Tensor, cached: list[Tensor]) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        cache = DynamicCache()
        for i in range(len(cached) // 2):
            cache.update(cached[2 * i], cached[2 * i + 1], i)
        logits = self.model(
            input_ids, position_ids=position_ids, past_key_values=cache, use_cache=True, return_dict=False
        )[0]
        return (
            logits,
            *(t for layer in cache.layers for t in (layer.keys[:, :, -1:], layer.values[:, :, -1:])),
        )


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """A module in inference whose weights have shapes and no elements."""
    with torch.device("meta"):
        return make().eval()


def make_image(size: int, batch: int = 1) -> dict[str, Tensor]:
    return {"x": torch.zeros(batch, 3, size, size, device="meta")}


def make_llama(layers: int = 32, **sizes: int) -> nn.Module:
    """Llama-3-8B of `transformers`, or a smaller one."""
    from transformers import LlamaConfig, LlamaForCausalLM

    full = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
    config = LlamaConfig(
        num_hidden_layers=layers,
        rms_norm_eps=1e-5,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        **(full | sizes),
    )
    return LlamaForCausalLM(config)


def resnet50(batch: int = 1) -> Example:
    return Example(on_meta(ResNet), make_image(224, batch))


def mobilenet_v3_large() -> Example:
    return Example(on_meta(MobileNetV3), make_image(224))


def bert_base(layers: int = 12) -> Example:
    from transformers import BertConfig, BertModel

    model = on_meta(lambda: BertModel(BertConfig(num_hidden_layers=layers), add_pooling_layer=False))
    return Example(
        LastHidden(model), {"input_ids": torch.zeros(1, 128, dtype=torch.int64, device="meta")}, "float16"
    )


def vit_b_16(layers: int = 12) -> Example:
    return Example(on_meta(lambda: VisionTransformer(layers=layers)), make_image(224))


def llama_prefill(layers: int = 32) -> Example:
    model = on_meta(lambda: make_llama(layers)).to(torch.float16)
    ids = torch.zeros(1, 512, dtype=torch.int64, device="meta")
    return Example(LastHidden(model, use_cache=False, logits_to_keep=1), {"input_ids": ids})


def llama_decode(layers: int = 32) -> Example:
    """One token that attends to 512: 511 of the cache, and itself."""
    model = on_meta(lambda: make_llama(layers)).to(torch.float16)
    cached = [torch.zeros(1, 8, 511, 128, dtype=torch.float16, device="meta") for _ in range(2 * layers)]
    ids, places = (torch.zeros(1, 1, dtype=torch.int64, device="meta") for _ in range(2))
    return Example(Decode(model), {"input_ids": ids, "position_ids": places, "cached": cached})


def unet_block() -> Example:
    x = torch.zeros(1, 320, 64, 64, device="meta")
    return Example(on_meta(UNetBlock), {"x": x, "time": torch.zeros(1, 1280, device="meta")})


MODELS: Mapping[str, Callable[..., Example]] = {
    "ResNet-50": resnet50,
    "MobileNetV3-large": mobilenet_v3_large,
    "BERT-base": bert_base,
    "ViT-B/16": vit_b_16,
    "Llama-3-8B prefill": llama_prefill,
    "Llama-3-8B decode": llama_decode,
    "U-Net block": unet_block,
}
