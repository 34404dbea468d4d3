"""Operators from the command line and from layer files: `conv2d --n 1 --c 64 ...`, `matmul 64 64 64`.

The arguments of a kind of operator come from the signature of the function that makes it.

Options that a command would ignore are refused: `refuse_unused_options`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ekc.errors import InvalidInput
from ekc.models.operator_arguments import EPILOGUE_OPTIONS, OPERATOR_KINDS, build_operator, find_factory

if TYPE_CHECKING:
    from ekc.ir.operator import Operator


_SHAPE_PATTERN = re.compile(r"\d+(x\d+)*\Z")
_VALUE_PREFIX = "value:"
"""Prefix of the value of an input, in place of a shape."""
_PADDING_PATTERN = re.compile(r"(?=.*:)\d+(:\d+)?(x\d+(:\d+)?)*\Z")
"""Padding before and after each dimension: 1:2x0:1."""
_OPTION_HELP = {
    "n": "Batch size: number of images (convolutions).",
    "c": "Input channels (convolutions).",
    "d": "Input depth (conv3d).",
    "h": "Input height (conv2d, conv3d).",
    "w": "Input width (convolutions).",
    "out_channels": "Output channels (convolutions).",
    "kernel": "Filter size, 3 or 3x5 (convolutions).",
    "stride": "Stride, 2 or 2x1 (convolutions).",
    "padding": "Padding: 1, 1x2, 1:2x0:1 (before:after per dimension), same or valid (convolutions).",
    "output_padding": "Rows added at the end, 1 or 1x0 (transposed convolutions).",
    "dilation": "Dilation, 2 or 2x1 (convolutions).",
    "groups": "Number of channel groups (convolutions).",
    "layout": "NCHW or NHWC, and the same for 1 and 3 dimensions (convolutions).",
    "axes": "Axes to reduce, 1 or 0x2 (reduce, layer_norm, rms_norm).",
    "combine": "sum, prod, max, min, mean, argmax or argmin (reduce).",
    "axis": "Axes to normalize over, 1 or 0x2 (softmax).",
    "eps": "Number added to the variance (layer_norm, rms_norm).",
    "dtype": "Type of the inputs: float32, tf32, float16, bfloat16, int8 or int32. "
    "For a model: float32, float16 or bfloat16.",
    "acc_dtype": "Type of the accumulators: float32 or int32. [default: by --dtype]",
    "out_dtype": "Type of the result. [default: by --dtype]",
}
_FLAG_HELP = {
    "transpose_a": "A is stored as [k, m] (matmul, batch_matmul).",
    "transpose_b": "B is stored as [n, k] (matmul, batch_matmul).",
    "keepdims": "Keep the reduced axes with extent 1 (reduce).",
}
_OPERATOR_PARAMETERS = (*_OPTION_HELP, *_FLAG_HELP, *EPILOGUE_OPTIONS)


class OperatorCommand(click.Command):
    """A command with an operator. Its help lists the options of operators after its own. click takes `-5` as
    an extent, which the operator refuses."""

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, {"ignore_unknown_options": True}, **settings)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write two lists of options."""
        own: list[tuple[str, str]] = []
        operator = [("OPERATOR", f"One of {', '.join(OPERATOR_KINDS)}.")]
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                (operator if parameter.name in _OPERATOR_PARAMETERS else own).append(record)
        for title, records in (("Options", own), ("Operator", operator)):
            with formatter.section(title):
                formatter.write_dl(records)


@dataclass(frozen=True)
class OperatorRequest:
    """The operator of a command line, not checked yet."""

    kind: str | None
    """Kind of operator, such as "matmul"; None if there is none."""
    extents: tuple[str, ...]
    """Positional arguments as typed."""
    options: Mapping[str, object]
    """Options by name, without those that were not given."""

    @property
    def is_empty(self) -> bool:
        """Whether no operator was given."""
        return self.kind is None

    def make_operator(self) -> Operator:
        """Make the operator. Raises `InvalidInput`."""
        if self.kind is None:
            raise InvalidInput(f"which operator? Name one of {', '.join(OPERATOR_KINDS)}, and its extents")
        if self.kind == "einsum":
            subscripts, *shapes = self.extents or ("",)
            return build_operator("einsum", self.options, subscripts, *(_parse_shape(s) for s in shapes))
        takes = list(inspect.signature(find_factory(self.kind)).parameters)
        if takes[0] == "shape" and len(self.extents) > 1:
            # The second number would be taken as an axis, or as an epsilon.
            shape = "x".join(self.extents)
            raise InvalidInput(
                f"{self.kind}: takes one shape, got {' '.join(self.extents)}; did you mean {shape}? "
                f"All else goes by name"
            )
        if takes[0] == "shape":
            if not self.extents:
                raise InvalidInput(f"{self.kind}: shape missing; write {self.kind} 128x64")
            return build_operator(self.kind, self.options, *map(_parse_shape, self.extents))
        self._check_numbers(self.kind)
        return build_operator(self.kind, self.options, *map(_parse_number, self.extents))

    def _check_numbers(self, kind: str) -> None:
        """Raise `InvalidInput` for extents that are no whole numbers, and for missing ones or options. The
        message shows how the command line is written."""
        parameters = inspect.signature(find_factory(kind)).parameters.values()
        needed = {p.name: p.kind is p.KEYWORD_ONLY for p in parameters if p.default is p.empty}
        places = [name for name, is_option in needed.items() if not is_option]
        flags = {name: f"--{name.replace('_', '-')}" for name, is_option in needed.items() if is_option}
        form = " ".join([kind, *map(str.upper, places), *(f"{flag} NUMBER" for flag in flags.values())])
        for text in self.extents:
            if isinstance(_parse_number(text), str | tuple):
                numbers = re.findall(r"\d+", " ".join(self.extents))
                near = f"; did you mean {kind} {' '.join(numbers)}?" if len(numbers) == len(places) else ""
                raise InvalidInput(f"{kind}: {text!r} is not a whole number; write {form}{near}")
        missing = [n for n in needed if n not in (*places[: len(self.extents)], *self.options)]
        if missing:
            names = ", ".join(flags.get(name, name) for name in missing)
            raise InvalidInput(f"{kind}: {names} missing; write {form}")


def operator_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with OPERATOR, extents and options, passed as `request=OperatorRequest(...)`."""

    @functools.wraps(command)
    def wrapped(**values: Any) -> Any:
        options = {name: values.pop(name) for name in (*_OPTION_HELP, *_FLAG_HELP)}
        named = {name: v for name, v in options.items() if v is not None}
        given = {name: _parse_option(name, v) if isinstance(v, str) else v for name, v in named.items()}
        epilogue = values.pop("epilogue")
        given |= {"epilogue": epilogue} if epilogue is not None else {}
        given |= parse_inputs(values.pop("inputs"))
        request = OperatorRequest(values.pop("operator"), values.pop("extents"), given)
        return command(request=request, **values)

    wrapped = click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=SHAPE",
        help="Shape of another input of the epilogue, or of an input of a model: bias=768 or x=8x3x224x224. "
        "Value of an input of an ONNX model: rate=value:16000.",
    )(wrapped)
    wrapped = click.option(
        "--epilogue", metavar="TEXT", help="Function of each element of the result: 'relu(c + bias)'."
    )(wrapped)
    for name, words in reversed((_OPTION_HELP | _FLAG_HELP).items()):
        form: dict[str, Any] = {"is_flag": True, "default": None} if name in _FLAG_HELP else {"metavar": "X"}
        wrapped = click.option(f"--{name.replace('_', '-')}", name, help=words, **form)(wrapped)
    wrapped = click.argument("extents", nargs=-1, callback=refuse_options)(wrapped)
    return click.argument("operator", required=False, callback=refuse_options)(wrapped)


def parse_inputs(inputs: tuple[str, ...]) -> dict[str, object]:
    """The options "inputs", shapes by name from texts as bias=768, and "values", numbers by name from texts
    as rate=value:16000. Both only where there are some."""
    shapes: dict[str, object] = {}
    values: dict[str, object] = {}
    for one in inputs:
        name, equals, text = one.partition("=")
        if not equals:
            raise InvalidInput(f"--input: {one!r} is not written as bias=768")
        if name in shapes or name in values:
            raise InvalidInput(f"--input: {name} is given twice")
        if text.startswith(_VALUE_PREFIX):
            values[name] = _parse_value(text.removeprefix(_VALUE_PREFIX))
        else:
            shapes[name] = _parse_shape(text)
    return {key: found for key, found in (("inputs", shapes), ("values", values)) if found}


def _parse_value(text: str) -> object:
    """Parse 16000 as a number, 1,2,3 as a list of numbers."""
    numbers = [_parse_number(part) for part in text.split(",")]
    if not all(isinstance(number, int | float) for number in numbers):
        raise InvalidInput(f"--input: {text!r:.60} is no number; write rate=value:16000 or sizes=value:1,2,3")
    return numbers if len(numbers) > 1 else numbers[0]


Words = TypeVar("Words")
"""Value of an argument in click: one word, several, a path, or None."""


def _parse_number(text: str) -> object:
    """Parse 3 as 3, 3x5 as (3, 5), 1:2x3 as ((1, 2), 3), 2.5 as 2.5; any other text is returned unchanged."""
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


def _parse_option(name: str, text: str) -> object:
    """Parse the value of an option. Raises `InvalidInput` for numbers with commas between them."""
    if re.fullmatch(r"[^\w-]*\d+(\s*,\s*\d+)+\W*", text):
        near = "x".join(re.findall(r"\d+", text))
        raise InvalidInput(
            f"--{name.replace('_', '-')}: {text!r} is not written as 3x5; did you mean {near}?"
        )
    return _parse_number(text)


def _parse_pair(text: str) -> int | tuple[int, ...]:
    """Parse 1:2 as (1, 2) and 3 as 3."""
    numbers = tuple(map(int, text.split(":")))
    return numbers if len(numbers) == 2 else numbers[0]


def _parse_shape(text: str) -> tuple[int, ...]:
    """Parse 128x64 as (128, 64)."""
    if not _SHAPE_PATTERN.match(text):
        near = "x".join(re.findall(r"\d+", text))
        raise InvalidInput(
            f"shape: {text!r} is not written as 128x64{f'; did you mean {near}?' if near else ''}"
        )
    return tuple(int(extent) for extent in text.split("x"))


def refuse_options(context: click.Context, _: click.Parameter, values: Words) -> Words:
    """Raise `click.NoSuchOption`, with the nearest option, for an unknown option among the arguments."""
    for value in map(str, values if isinstance(values, tuple) else (values,)):
        if value.startswith("-") and isinstance(_parse_number(value), str):
            names = [name for p in context.command.params for name in p.opts if name.startswith("--")]
            raise click.NoSuchOption(
                value, possibilities=difflib.get_close_matches(value, names), ctx=context
            )
    return values


def refuse_unused_options(unused: Container[str | None], reason: str) -> None:
    """Raise `InvalidInput` if one of these parameters of the running command is given."""
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in unused and source is ParameterSource.COMMANDLINE:
            raise InvalidInput(f"{parameter.opts[0]}: {reason}")
