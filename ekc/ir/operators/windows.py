"""What convolutions share: a filter that moves along each image dimension, groups, memory layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.arguments import check_choice, show
from ekc.ir.checks import several, whole
from ekc.ir.operator import MAX_ELEMENTS

Several = int | tuple[int, ...]
"""One number for every image dimension, or one for each."""
_AXES = {"d": ("z", "t"), "h": ("p", "r"), "w": ("q", "s")}
"""The output axis and the filter axis of each image dimension: depth, height, width."""


@dataclass(frozen=True)
class Window:
    """The filter along one image dimension."""

    dim: str
    """"d", "h" or "w"."""
    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> int:
        """Elements from the filter's first tap to its last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def out(self) -> ex.Var:
        """The axis that the output runs along."""
        return ex.Var(_AXES[self.dim][0])

    @property
    def tap(self) -> ex.Var:
        """The axis that the filter runs along."""
        return ex.Var(_AXES[self.dim][1])


def windows(
    image: dict[str, int], kernel: Several, stride: Several, padding: Several, dilation: Several
) -> tuple[Window, ...]:
    """One window for each image dimension, its numbers checked."""
    count = len(image)
    columns = (
        _each("kernel", kernel, count),
        _each("stride", stride, count),
        _each("padding", padding, count, least=0),
        _each("dilation", dilation, count),
    )
    return tuple(
        Window(dim, whole(dim, size, MAX_ELEMENTS), *numbers)
        for (dim, size), *numbers in zip(image.items(), *columns, strict=True)
    )


def _each(name: str, value: Several, count: int, least: int = 1) -> tuple[int, ...]:
    each = several(value)
    if each is None:
        each = (value,) * count
    if len(each) != count:
        other = {1: "nor a tuple of one", 2: "nor a pair"}.get(count, "nor a triple")
        raise InvalidInput(f"{name}: {show(value)} is neither one whole number {other}")
    return tuple(whole(name, v, MAX_ELEMENTS, least) for v in each)


def paddings_after(value: Several, over: Sequence[Window]) -> tuple[int, ...]:
    """`output_padding` for each window: less than its stride or its dilation, as PyTorch has it."""
    extra = _each("output_padding", value, len(over), least=0)
    for e, window in zip(extra, over, strict=True):
        most = max(window.stride, window.dilation) - 1
        if e > most:
            raise InvalidInput(
                f"output_padding: {e} along {window.dim} is not below its stride or dilation; "
                f"the nearest legal value is {most}"
            )
    return extra


@dataclass(frozen=True)
class Channels:
    """Input and output channels, in groups that do not mix."""

    c: int
    out: int
    groups: int

    def __post_init__(self) -> None:
        for name, value in (("c", self.c), ("out_channels", self.out), ("groups", self.groups)):
            whole(name, value, MAX_ELEMENTS)
        for name, count in (("c", self.c), ("out_channels", self.out)):
            if count % self.groups:
                both = (
                    g for g in range(min(self.groups, count), 0, -1) if self.c % g == 0 and self.out % g == 0
                )
                raise InvalidInput(
                    f"groups: {self.groups} does not divide {name}={count}; "
                    f"the nearest that does is {next(both)}"
                )

    @property
    def share(self) -> int:
        """Input channels that one output channel sums over."""
        return self.c // self.groups

    @property
    def per(self) -> int:
        """Output channels of a group."""
        return self.out // self.groups

    def read(self) -> ex.Expr:
        """The input channel: axis c within the group of output channel o."""
        if self.groups == 1:
            return ex.Var("c")
        group = ex.Var("o") if self.per == 1 else ex.Var("o") // self.per
        return group * self.share + ex.Var("c")


@dataclass(frozen=True)
class Layout:
    """Where channels stand in memory: right after the images, or last."""

    channels_last: bool

    @classmethod
    def of(cls, name: str, dims: str) -> Layout:
        """NCHW or NHWC, with the dimensions of this image in place of H and W."""
        known = (f"NC{dims}", f"N{dims}C")
        check_choice("layout", name, known)
        return cls(name == known[1])

    def order(self, channel: Any, *image: Any) -> tuple[Any, ...]:
        """What belongs to the channels and to each image dimension, in the order of memory."""
        return (*image, channel) if self.channels_last else (channel, *image)
