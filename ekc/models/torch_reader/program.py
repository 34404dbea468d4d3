"""Programs of torch.export: made from modules, loaded from files, with fixed shapes."""

from __future__ import annotations

import inspect
import logging
import operator
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from ekc.argument_checks import check_mapping, check_text, format_value
from ekc.errors import InvalidInput
from ekc.models.torch_reader import torch

Shapes = Mapping[str, Sequence[int]]
MAX_REASON = 300
"""Most characters of PyTorch's reason in a message."""


def take_first_line(error: BaseException) -> str:
    """The first line of an error's message that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)[:MAX_REASON]


@contextmanager
def evaluation_mode(module: Any) -> Iterator[None]:
    """Dropout and batch norm as in inference; every module gets its own mode back."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


@contextmanager
def quiet() -> Iterator[None]:
    """Without gradients, and without PyTorch's warnings and log of its own errors: ekc raises these."""
    logs = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("torch.")]
    enabled = [log for log in logs if not log.disabled]
    for log in enabled:
        log.disabled = True
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log in enabled:
            log.disabled = False


def export_module(module: Any, example_inputs: Any, shapes: Shapes | None) -> Any:
    """`torch.export` of a module in inference. Raises `InvalidInput` with PyTorch's reason."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(f"from_torch: a torch.nn.Module is needed, not {type(module).__name__}")
    refuse_quantised(module)
    args, kwargs = separate_repeated(split_examples(example_inputs))
    if shapes:
        args, kwargs = replace_examples(module, args, kwargs, shapes)
    with evaluation_mode(module), quiet():
        try:
            with redirect_stderr(StringIO()) as said:
                program = torch.export.export(module, args, kwargs)
            sys.stderr.write(said.getvalue())
            return program
        except Exception as error:
            name = type(module).__name__
            if type(error).__name__ == "GuardOnDataDependentSymNode":
                raise InvalidInput(
                    f"torch.export cannot export {name}: a branch or a size depends on the elements of a"
                    " tensor; ekc reads straight-line programs, with torch.where in place of if"
                ) from error
            raise InvalidInput(f"torch.export cannot export {name}: {take_first_line(error)}") from error


def refuse_quantised(module: Any) -> None:
    """Refuse modules whose weights are packed for the int8 kernels of PyTorch, which cannot be exported."""
    for name, part in module.named_modules():
        kind = type(part)
        is_packed = any(key.startswith(("_packed", "_all_weight")) for key in (*vars(part), *part._modules))
        if ".quantized." in f"{kind.__module__}." and is_packed:
            raise InvalidInput(
                f"{type(module).__name__}: {name or 'it'} is {kind.__module__}.{kind.__name__}, whose packed"
                " int8 weights torch.export cannot export; give the module before quantize_dynamic or convert"
            )


def split_examples(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments: a tensor, a sequence of arguments, or a mapping of named ones."""
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, list | tuple):
        return tuple(example_inputs), {}
    raise InvalidInput(
        "from_torch: example_inputs is a tensor, a tuple of arguments or a dict of named ones, not"
        f" {type(example_inputs).__name__}"
    )


def separate_repeated(examples: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """The same arguments, where a tensor given twice is two: torch.export takes it for one input."""
    seen: set[int] = set()

    def separate(item: Any) -> Any:
        if not isinstance(item, torch.Tensor) or id(item) not in seen:
            seen.add(id(item))
            return item
        return item.clone()

    return torch.utils._pytree.tree_map(separate, examples)


def replace_examples(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Shapes
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The examples with other shapes, by the names of the arguments of `forward`."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInput(f"from_torch: example_inputs do not fit forward: {error}") from None
    tensors = {name: value for name, value in bound.arguments.items() if isinstance(value, torch.Tensor)} | {
        name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)
    }
    check_input_names(shapes, list(tensors))
    new = {
        name: torch.zeros(tuple(shape), dtype=tensors[name].dtype, device=tensors[name].device)
        for name, shape in shapes.items()
    }
    for name, tensor in new.items():
        if name in kwargs:
            kwargs[name] = tensor
        else:
            args = tuple(tensor if arg is tensors[name] else arg for arg in args)
    return args, kwargs


def check_arguments(shapes: Any, name: Any) -> None:
    """Refuse shapes that are no mapping, and a name that is no text."""
    if shapes is not None:
        check_mapping("shapes", shapes, 'shapes={"x": (8, 3, 224, 224)}')
    if name is not None:
        check_text("name", name, 'name="my model"')


def check_input_names(shapes: Shapes, names: Sequence[str]) -> None:
    """Refuse shapes of inputs that do not exist, and sizes that are no positive numbers."""
    for name, shape in shapes.items():
        if name not in names:
            raise InvalidInput(f"shapes: no input {name!r}; inputs are {', '.join(names)}")
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            raise InvalidInput(f"shapes: {name} is {format_value(shape)}; give a tuple of sizes")
        if not all(isinstance(e, int) and not isinstance(e, bool) and e > 0 for e in shape):
            raise InvalidInput(f"shapes: {name} is {tuple(shape)}; sizes are whole numbers of 1 or more")


def load_program(path: str | Path) -> Any:
    """Read a file of `torch.export.save`. Raises `InvalidInput` where it is missing or broken."""
    if not Path(path).is_file():
        raise InvalidInput(f"{path}: no such file")
    try:
        with quiet():
            return torch.export.load(str(path))
    except Exception as error:
        raise InvalidInput(f"{path}: not a program of torch.export.save: {take_first_line(error)}") from error


def make_functional(program: Any, decompositions: Mapping[Any, Any]) -> Any:
    """The program without writes to tensors, with only the operators in `decompositions` decomposed."""
    with quiet():
        try:
            return program.run_decompositions(dict(decompositions))
        except Exception as error:
            raise InvalidInput(
                f"torch.export cannot make the program functional: {take_first_line(error)}"
            ) from error


def derive_facts(program: Any, shapes: Shapes | None) -> dict[Any, Any]:
    """Node -> its tensors without elements, or its numbers, all shapes fixed by `shapes`.

    Raises `InvalidInput` for an open dimension without a value and for shapes that the program excludes.
    """
    nodes = program.graph_module.graph.nodes
    inputs = list_tensor_inputs(program)
    if shapes:
        check_input_names(shapes, [node.name for node in inputs])
    sizes = bind_sizes(program, inputs, shapes or {})
    recorded = {node: node.meta.get("val") for node in nodes}
    if not sizes:
        return recorded
    given = {node: sizes_of(node, sizes) for node in inputs}
    facts: dict[Any, Any] = {}
    with quiet(), torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        for node in nodes:
            if node.op == "call_function":
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), facts.get)
                try:
                    facts[node] = node.target(*args, **kwargs)
                except Exception as error:
                    reason = take_first_line(error)
                    raise InvalidInput(f"shapes: {node.name} does not take them: {reason}") from error
            elif node.op == "get_attr":
                facts[node] = operator.attrgetter(node.target)(program.graph_module)
            elif isinstance(value := recorded[node], torch.Tensor):
                shape = given.get(node, tuple(value.shape))
                facts[node] = torch.empty(shape, dtype=value.dtype, device=value.device)
            else:
                facts[node] = value
    return facts


def list_tensor_inputs(program: Any) -> list[Any]:
    """Placeholders that are tensors which the user gives."""
    given = set(program.graph_signature.user_inputs)
    return [
        node
        for node in program.graph_module.graph.nodes
        if node.op == "placeholder" and node.name in given and isinstance(node.meta.get("val"), torch.Tensor)
    ]


def is_open(size: Any) -> bool:
    """Whether a size is a symbol or an expression of symbols."""
    return not isinstance(size, int)


def bind_sizes(program: Any, inputs: Sequence[Any], shapes: Shapes) -> dict[Any, int]:
    """Symbol of an open dimension -> its value."""
    sizes: dict[Any, int] = {}
    for node in inputs:
        shape = node.meta["val"].shape
        given = shapes.get(node.name)
        if given is None:
            continue
        if len(given) != len(shape):
            raise InvalidInput(
                f"shapes: {node.name} is {tuple(given)}; it has {len(shape)} dimensions in the program"
            )
        for size, value in zip(shape, given, strict=True):
            if is_open(size) and size.node.expr.is_Symbol:
                sizes.setdefault(size.node.expr, int(value))
    for node in inputs:
        for axis, size in enumerate(node.meta["val"].shape):
            if is_open(size) and not set(size.node.expr.free_symbols) <= set(sizes):
                raise InvalidInput(describe_open(node, axis, program))
        given = shapes.get(node.name)
        if given is not None and tuple(given) != sizes_of(node, sizes):
            raise InvalidInput(
                f"shapes: {node.name} is {tuple(given)}, but the program takes {sizes_of(node, sizes)};"
                " export it with dynamic_shapes"
            )
    for symbol, value in sizes.items():
        allowed = program.range_constraints.get(symbol)
        if allowed is not None and not allowed.lower <= value <= allowed.upper:
            raise InvalidInput(
                f"shapes: {name_dimension(symbol, inputs)} is {value}; the program takes"
                f" {allowed.lower} to {allowed.upper}"
            )
    return sizes


def sizes_of(node: Any, sizes: Mapping[Any, int]) -> tuple[int, ...]:
    """The shape of an input with the values of its symbols."""
    shape = node.meta["val"].shape
    return tuple(int(e.node.expr.subs(sizes)) if is_open(e) else int(e) for e in shape)


def name_dimension(symbol: Any, inputs: Sequence[Any]) -> str:
    """The first place where a symbol is a dimension: "x, dimension 0"."""
    for node in inputs:
        for axis, size in enumerate(node.meta["val"].shape):
            if is_open(size) and size.node.expr == symbol:
                return f"{node.name}, dimension {axis}"
    return str(symbol)


def describe_open(node: Any, axis: int, program: Any) -> str:
    """The line that asks for the size of an open dimension."""
    shape = node.meta["val"].shape
    example = ["8" if is_open(e) else str(int(e)) for e in shape]
    allowed = program.range_constraints.get(shape[axis].node.expr)
    upper = str(allowed.upper) if allowed is not None else "int_oo"
    span = f" ({allowed.lower} to {upper})" if upper.isdigit() else ""
    entry = ", ".join(example) + ("," if len(example) == 1 else "")
    return (
        f"input {node.name}, dimension {axis} has no fixed size{span}; give one, for example"
        f" shapes={{{node.name!r}: ({entry})}} or --input {node.name}={'x'.join(example)}"
    )


def find_decompositions(targets: Sequence[Any]) -> dict[Any, Any]:
    """PyTorch's decompositions of these operators, where it has them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        is_own = all(target.namespace in ("aten", "prims") for target in targets)
        core = list_core_decompositions() if is_own else torch.export.default_decompositions()
        table = {target: core[target] for target in targets if target in core}
        others = [target for target in targets if target not in table]
        return {**table, **torch._decomp.get_decompositions(others)}


@cache
def list_core_decompositions() -> dict[Any, Any]:
    """PyTorch's table of decompositions, which it takes 0.3 s to make; without operators of libraries that a
    user registers later."""
    return dict(torch.export.default_decompositions())
