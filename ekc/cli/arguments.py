"""Operators from the command line and from layer files: `conv2d --n 1 --c 64 ...`, `matmul 64 64 64`.

Which arguments a kind takes is read off the function that makes it; no kind is spelled out here but
for its name.

Options that the command line gives and nobody would read: refused, since dropping them would mislead.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.ir.operator import Operator


OPERATOR_KINDS = (
    *("matmul", "batch_matmul", "matvec", "einsum"),
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("reduce", "softmax", "layer_norm", "rms_norm"),
)
EPILOGUE_OPTIONS = ("epilogue", "inputs")
"""Options of every kind: what is done to each element of the result, and the shapes of further inputs."""
_SHAPE_PATTERN = re.compile(r"\d+(x\d+)*\Z")
_PADDING_PATTERN = re.compile(r"(?=.*:)\d+(:\d+)?(x\d+(:\d+)?)*\Z")
"""Padding before and after each dimension."""
_OPTION_HELP = {
    "n": "images (convolutions)",
    "c": "input channels (convolutions)",
    "d": "image depth (conv3d)",
    "h": "image height (conv2d, conv3d)",
    "w": "image width (convolutions)",
    "out_channels": "output channels (convolutions)",
    "kernel": "filter extent, 3 or 3x5 (convolutions)",
    "stride": "3 or 3x5 (convolutions)",
    "padding": "3 or 3x5, 1:2x0:1 before and after each dimension, same or valid (convolutions)",
    "output_padding": "rows added behind, 1 or 1x0 (transposed convolutions)",
    "dilation": "3 or 3x5 (convolutions)",
    "groups": "groups of channels (convolutions)",
    "layout": "NCHW or NHWC, and likewise for 1 and 3 dimensions (convolutions)",
    "axes": "which to go along, 1 or 0x2 (reduce, layer_norm, rms_norm)",
    "combine": "sum, prod, max, min, mean, argmax or argmin (reduce)",
    "axis": "where the rows run, 1 or 0x2 (softmax)",
    "eps": "what is added to the variance (layer_norm, rms_norm)",
    "dtype": "of the inputs: float32, tf32, float16, bfloat16 or int8",
    "acc_dtype": "of the sums: float32 or int32, if another than usual",
    "out_dtype": "of the result, if another than usual",
}
_FLAG_HELP = {
    "transpose_a": "A is stored [k, m] (matmul, batch_matmul)",
    "transpose_b": "B is stored [n, k] (matmul, batch_matmul)",
    "keepdims": "reduced axes stay, with extent 1 (reduce)",
}


@dataclass(frozen=True)
class OperatorRequest:
    """An operator as asked for on the command line; nothing of it is checked yet."""

    kind: str | None
    extents: tuple[str, ...]
    options: Mapping[str, object]

    @property
    def is_empty(self) -> bool:
        """Whether no operator was named."""
        return self.kind is None

    def make_operator(self) -> Operator:
        """The operator. Raises `InvalidInput` for what it cannot be."""
        if self.kind is None:
            raise InvalidInput(f"which operator? Name one of {', '.join(OPERATOR_KINDS)}, and its extents")
        if self.kind == "einsum":
            subscripts, *shapes = self.extents or ("",)
            return build_operator("einsum", self.options, subscripts, *(_parse_shape(s) for s in shapes))
        takes = list(inspect.signature(_find_factory(self.kind)).parameters)
        if takes[0] == "shape" and len(self.extents) > 1:
            # The second would be an axis, or even an epsilon.
            whole = "x".join(self.extents)
            raise InvalidInput(
                f"{self.kind}: takes one shape, got {' '.join(self.extents)}; did you mean {whole}? "
                f"All else goes by name"
            )
        named = itertools.zip_longest(takes, self.extents)
        extents = [
            _parse_shape(e) if name == "shape" else _parse_number(e) for name, e in named if e is not None
        ]
        return build_operator(self.kind, self.options, *extents)


def operator_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the argument OPERATOR with its extents and options, as `request=Request(...)`."""

    @functools.wraps(command)
    def wrapped(**values: Any) -> Any:
        options = {name: values.pop(name) for name in (*_OPTION_HELP, *_FLAG_HELP)}
        given = {
            name: _parse_number(v) if isinstance(v, str) else v
            for name, v in options.items()
            if v is not None
        }
        given |= _parse_epilogue(values.pop("epilogue"), values.pop("inputs"))
        request = OperatorRequest(values.pop("operator"), values.pop("extents"), given)
        return command(request=request, **values)

    wrapped = click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=SHAPE",
        help="A further input of the epilogue, bias=768 or before=128x768.",
    )(wrapped)
    wrapped = click.option(
        "--epilogue", metavar="TEXT", help="What is done to each element of the result: 'relu(c + bias)'."
    )(wrapped)
    for name, words in reversed(_FLAG_HELP.items()):
        wrapped = click.option(f"--{name.replace('_', '-')}", name, is_flag=True, default=None, help=words)(
            wrapped
        )
    for name, words in reversed(_OPTION_HELP.items()):
        wrapped = click.option(f"--{name.replace('_', '-')}", name, metavar="X", help=words)(wrapped)
    wrapped = click.argument("extents", nargs=-1, callback=refuse_options)(wrapped)
    return click.argument("operator", required=False, callback=refuse_options)(wrapped)


def _parse_epilogue(text: str | None, inputs: tuple[str, ...]) -> dict[str, object]:
    """As options of `build`."""
    given: dict[str, object] = {} if text is None else {"epilogue": text}
    shapes = {}
    for one in inputs:
        name, equals, shape = one.partition("=")
        if not equals:
            raise InvalidInput(f"--input: {one!r} is not written as bias=768")
        if name in shapes:
            raise InvalidInput(f"--input: {name} is given twice")
        shapes[name] = _parse_shape(shape)
    return given | ({"inputs": shapes} if shapes else {})


Words = TypeVar("Words")
"""What click has of an argument: one word, several, a path, or None."""
ALLOW_NEGATIVES = {"ignore_unknown_options": True}
"""Context settings that let `-5` through as an extent, to be refused as one."""


def build_operator(kind: str, options: Mapping[str, object], *extents: object) -> Operator:
    """The operator `kind` of positional extents and named arguments, with the epilogue of that text and
    inputs of these shapes, if any. Raises `InvalidInput`."""
    make = _find_factory(kind)
    own = {name: value for name, value in options.items() if name not in EPILOGUE_OPTIONS}
    _check_names(kind, inspect.signature(make), own, extents)
    made: Operator = make(*extents, **own)
    if "epilogue" not in options:
        if "inputs" in options:
            raise InvalidInput(
                f"{kind}: inputs are those of an epilogue; write epilogue = 'relu(c + bias)' too"
            )
        return made
    from ekc.ir.epilogue import parse_epilogue

    text, inputs = options["epilogue"], options.get("inputs", {})
    if not isinstance(text, str) or not isinstance(inputs, Mapping):
        raise InvalidInput(
            f"{kind}: epilogue is a text, such as 'relu(c + bias)', and inputs give shapes by name"
        )
    return made.epilogue(parse_epilogue(text, inputs), **inputs)


def _find_factory(kind: str) -> Callable[..., Operator]:
    """The function of the face that makes operators of a kind."""
    import ekc

    if kind not in OPERATOR_KINDS:
        near = difflib.get_close_matches(kind, OPERATOR_KINDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidInput(f"there is no operator {kind!r}: choose {', '.join(OPERATOR_KINDS)}{hint}")
    make: Callable[..., Operator] = getattr(ekc, kind)
    return make


def _check_names(
    kind: str, signature: inspect.Signature, options: Mapping[str, object], extents: tuple[object, ...]
) -> None:
    """Refuse arguments that the kind does not take, that are missing, or that are given twice."""
    parameters = signature.parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in options:
        if name not in known:
            raise InvalidInput(f"{kind}: takes no {name}; it takes {', '.join(known)}")
    if len(extents) > len(positional) and not open_ended:
        raise InvalidInput(
            f"{kind}: takes {len(positional)} extents ({', '.join(positional)}), got {len(extents)}"
        )
    for name in positional[: len(extents)]:
        if name in options:
            raise InvalidInput(f"{kind}: {name} is given twice, by its place and by its name")
    needed = [p.name for p in parameters if p.default is p.empty and p.name in known]
    missing = [n for n in needed if n not in (*positional[: len(extents)], *options)]
    if missing:
        raise InvalidInput(f"{kind}: {', '.join(missing)} missing; it needs {', '.join(needed)}")


def _parse_number(text: str) -> object:
    """3 as a number, 3x5 as a pair, 1:2x3 as ((1, 2), 3), 2.5 as a fraction (for the operator to refuse);
    else the text itself."""
    if _SHAPE_PATTERN.match(text) and "x" in text:
        return _parse_shape(text)
    if _PADDING_PATTERN.match(text):
        return tuple(_parse_pair(part) for part in text.split("x"))
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _parse_pair(text: str) -> int | tuple[int, ...]:
    both = tuple(map(int, text.split(":")))
    return both if len(both) == 2 else both[0]


def _parse_shape(text: str) -> tuple[int, ...]:
    if not _SHAPE_PATTERN.match(text):
        raise InvalidInput(f"shape: {text!r} is not written as 128x64")
    return tuple(int(extent) for extent in text.split("x"))


def refuse_options(context: click.Context, _: click.Parameter, values: Words) -> Words:
    """Options that no one knows arrive among the arguments: say so, and name the nearest."""
    for value in map(str, values if isinstance(values, tuple) else (values,)):
        if value.startswith("-") and isinstance(_parse_number(value), str):
            known = [name for p in context.command.params for name in p.opts if name.startswith("--")]
            raise click.NoSuchOption(
                value, possibilities=difflib.get_close_matches(value, known), ctx=context
            )
    return values


def refuse_unused_options(unused: Container[str | None], reason: str) -> None:
    """Raises `InvalidInput` where one of these parameters of the running command is given."""
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in unused and source is ParameterSource.COMMANDLINE:
            raise InvalidInput(f"{parameter.opts[0]}: {reason}")
