"""What convolutions share: a filter that moves along each image dimension, groups, memory layouts."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.arguments import check_choice, show
from ekc.ir.checks import several, whole
from ekc.ir.operator import MAX_ELEMENTS

Several = int | tuple[int, ...]
"""One number for every image dimension, or one for each."""
Padding = int | str | tuple[int | tuple[int, int], ...]
"""One number for both ends of every image dimension; for each dimension a number or the pair (before, after);
`((before, after),)` for every dimension; "same" or "valid"."""
_WORDS = ("same", "valid")
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
    dilation: int
    before: int = 0
    """Padding at the start of the dimension."""
    after: int = 0
    """Padding at its end."""

    @property
    def reach(self) -> int:
        """Elements from the filter's first tap to its last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def padding(self) -> int:
        """Padding at both ends together."""
        return self.before + self.after

    @property
    def out(self) -> ex.Var:
        """The axis that the output runs along."""
        return ex.Var(_AXES[self.dim][0])

    @property
    def tap(self) -> ex.Var:
        """The axis that the filter runs along."""
        return ex.Var(_AXES[self.dim][1])


def windows(
    image: dict[str, int],
    kernel: Several,
    stride: Several,
    padding: Padding,
    dilation: Several,
    same: Callable[[Window], tuple[int, int]],
) -> tuple[Window, ...]:
    """One window for each image dimension, its numbers checked; `same` says how far padding="same" pads the
    two ends of a dimension."""
    count = len(image)
    columns = zip(
        _each("kernel", kernel, count),
        _each("stride", stride, count),
        _each("dilation", dilation, count),
        strict=True,
    )
    over = [
        Window(dim, whole(dim, size, MAX_ELEMENTS), *numbers)
        for (dim, size), numbers in zip(image.items(), columns, strict=True)
    ]
    if isinstance(padding, str):
        ends = [same(x) if _check_word(padding) == "same" else (0, 0) for x in over]
    else:
        ends = _read_ends(padding, count)
    return tuple(replace(x, before=a, after=b) for x, (a, b) in zip(over, ends, strict=True))


def _check_word(padding: str) -> str:
    if padding in _WORDS:
        return padding
    near = difflib.get_close_matches(padding, _WORDS, n=1, cutoff=0.0)[0]
    raise InvalidInput(
        f"padding: {show(padding)} is neither a number, nor pairs (before, after), nor one of "
        f"{', '.join(_WORDS)}; the nearest is {near!r}"
    )


def _read_ends(padding: Any, count: int) -> list[tuple[int, int]]:
    """Padding before and after each image dimension."""
    given = several(padding)
    if given is None:
        given = (padding,) * count
    elif len(given) == 1 and several(given[0]) is not None:
        given *= count
    if len(given) != count:
        pairs = ", ".join(["(1, 2)"] * count)
        first = show(padding[0]) if given else 0
        raise InvalidInput(
            f"padding: {show(padding)} has {len(given)} entries for {count} image "
            f"dimension{'s' * (count > 1)}; try {first}, or (before, after) of each: "
            f"({pairs}{',' * (count == 1)})"
        )
    return [_read_pair(one) for one in given]


def _read_pair(one: Any) -> tuple[int, int]:
    both = several(one)
    if both is None:
        both = (one, one)
    if len(both) != 2:
        raise InvalidInput(f"padding: {show(one)} is no pair (before, after); try (1, 2)")
    before, after = (whole("padding", v, MAX_ELEMENTS, 0) for v in both)
    return before, after


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
