"""Operators by the name of their kind: `build_operator("matmul", {"m": 64, "n": 64, "k": 64})`.

The arguments of a kind of operator come from the signature of the function that makes it.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.ir.operator import Operator

OPERATOR_KINDS = (
    *("matmul", "batch_matmul", "matvec", "einsum"),
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("reduce", "softmax", "layer_norm", "rms_norm"),
)
_KIND_SYNONYMS = {
    **dict.fromkeys(("gemm", "mm", "dot", "linear", "dense"), "matmul"),
    **{"bmm": "batch_matmul", "gemv": "matvec", "mv": "matvec"},
    **{"conv": "conv2d", "convolution": "conv2d", "layernorm": "layer_norm", "rmsnorm": "rms_norm"},
    **dict.fromkeys(("sum", "mean", "max", "min", "argmax"), "reduce"),
}
"""Names of operators in other libraries, and the kind here."""
EPILOGUE_OPTIONS = ("epilogue", "inputs")
"""Options of every kind of operator: the epilogue, and the shapes of its further inputs."""


def build_operator(kind: str, options: Mapping[str, object], *extents: object) -> Operator:
    """Make an operator from positional extents and named arguments, with the options "epilogue" and "inputs"
    if given. Raises `InvalidInput`."""
    make = find_factory(kind)
    own = {name: value for name, value in options.items() if name not in EPILOGUE_OPTIONS}
    _check_names(kind, inspect.signature(make), own, extents)
    made: Operator = make(*extents, **own)
    if "epilogue" not in options:
        if "inputs" in options:
            raise InvalidInput(
                f"{kind}: inputs are those of an epilogue; add an epilogue, such as 'relu(c + bias)'"
            )
        return made
    from ekc.ir.epilogue import parse_epilogue

    text, inputs = options["epilogue"], options.get("inputs", {})
    if not isinstance(text, str) or not isinstance(inputs, Mapping):
        raise InvalidInput(
            f"{kind}: epilogue is a text, such as 'relu(c + bias)', and inputs give shapes by name"
        )
    return made.epilogue(parse_epilogue(text, inputs), **inputs)


def find_factory(kind: str) -> Callable[..., Operator]:
    """The function that makes operators of a kind. Raises `InvalidInput`, with the nearest kind."""
    from ekc.ir import operators

    if kind not in OPERATOR_KINDS:
        known = _KIND_SYNONYMS.get(kind.lower())
        near = [known] if known else difflib.get_close_matches(kind, OPERATOR_KINDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidInput(f"no operator {kind!r}; operators are {', '.join(OPERATOR_KINDS)}{hint}")
    make: Callable[..., Operator] = getattr(operators, kind)
    return make


def _check_names(
    kind: str, signature: inspect.Signature, options: Mapping[str, object], extents: tuple[object, ...]
) -> None:
    """Raise `InvalidInput` for arguments that are unknown, missing, or given twice."""
    parameters = signature.parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in options:
        if name not in names:
            raise InvalidInput(f"{kind}: no argument {name!r}; arguments are {', '.join(names)}")
    if len(extents) > len(positional) and not open_ended:
        raise InvalidInput(
            f"{kind}: takes {len(positional)} extents ({', '.join(positional)}), got {len(extents)}"
        )
    for name in positional[: len(extents)]:
        if name in options:
            raise InvalidInput(f"{kind}: {name} is given twice, by its place and by its name")
    needed = [p.name for p in parameters if p.default is p.empty and p.name in names]
    missing = [n for n in needed if n not in (*positional[: len(extents)], *options)]
    if missing:
        raise InvalidInput(f"{kind}: {', '.join(missing)} missing; it needs {', '.join(needed)}")
