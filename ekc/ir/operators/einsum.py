"""`einsum`: products of tensors summed over axes, named by subscripts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ekc.argument_checks import check_text, format_value
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.compute import TensorSpec
from ekc.ir.compute_builder import Tensor, check_shape, make_compute
from ekc.ir.dtypes import choose_accumulator_and_result, parse_dtype
from ekc.ir.operator import Operator
from ekc.ir.validate import make_unique_name

_OPERAND_PATTERN = r"(?=[A-Za-z.])[A-Za-z]*(?:\.\.\.)?[A-Za-z]*"
_SUBSCRIPTS_PATTERN = re.compile(
    rf"({_OPERAND_PATTERN}(?:,{_OPERAND_PATTERN})*)(?:->({_OPERAND_PATTERN}|))?\Z"
)
_INPUT_NAMES = ("A", "B", "D", "E", "F", "G")
"""Names of the inputs of einsum; the output is C."""


@dataclass(frozen=True)
class _Factor:
    """A tensor in a product, and the axis of each dimension; None for one of extent 1 that is stretched."""

    name: str
    index: tuple[str | None, ...]

    @property
    def axes(self) -> frozenset[str]:
        """The axes that the factor depends on."""
        return frozenset(a for a in self.index if a is not None)


@dataclass(frozen=True)
class _Product:
    """One compute: factors multiplied, and summed over the axes that the output lacks."""

    output: _Factor
    factors: tuple[_Factor, ...]

    @property
    def axes(self) -> list[str]:
        """Every axis of the product, in order of appearance."""
        return list(dict.fromkeys(a for f in self.factors for a in f.index if a is not None))

    @property
    def summed_axes(self) -> list[str]:
        """The axes that are summed over."""
        return [a for a in self.axes if a not in self.output.axes]

    def count_flops(self, extents: Mapping[str, int]) -> int:
        """Number of multiplications and additions."""
        each = len(self.factors) - 1 + bool(self.summed_axes)
        return each * prod(extents[a] for a in self.axes)


def einsum(
    subscripts: str,
    *shapes: tuple[int, ...],
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Any contraction of one to six operands: `einsum("mk,kn->mn", (m, k), (k, n))`.

    The inputs are A, B, D, E, F and G, the output C; one that is also a letter gets an underscore. A letter
    that the output lacks is summed over; one that an operand repeats walks its diagonal ("ii->i"); with none
    in common ("a,b->ab") it is an outer product. A full sum ("ij,ij->") has the shape (1,). Without "->" the
    output has every letter that occurs once, in the order of the alphabet ("ij,jk" is "ij,jk->ik"), and "..."
    before them. "..." is all dimensions without a letter; they align at the last, and extents of 1 stretch,
    as in NumPy.

    Three operands or more are multiplied in the order with the fewest operations, as `np.einsum_path` finds
    it: pairs, each stored, or all at once where that is no more work. Intermediate results are rounded once,
    to the default type of sums of `dtype` (float16 for float16, so that tensor cores can multiply them), or
    to the accumulator type (float32) where `out_dtype` is that type. Raises `InvalidInput` for another form,
    an extent that differs between two places of a letter, dimensions of "..." that do not broadcast, and
    output letters that are unknown or repeated.
    """
    check_text("einsum", subscripts, "'mk,kn->mn'")
    match = _SUBSCRIPTS_PATTERN.match(subscripts.replace(" ", ""))
    if not match:
        raise InvalidInput(
            f"einsum: {format_value(subscripts)} is not of the form 'ab,bc->ac', 'ab,bc', "
            "'...ab,...bc->...ac' or 'ab->a'"
        )
    operands = match[1].split(",")
    if len(operands) != len(shapes):
        raise InvalidInput(
            f"einsum: {format_value(subscripts)} has {len(operands)} operand{'s' * (len(operands) > 1)}, "
            f"{len(shapes)} shape{'s' * (len(shapes) != 1)} given"
        )
    if len(operands) > len(_INPUT_NAMES):
        raise InvalidInput(
            f"einsum: {len(operands)} operands, at most {len(_INPUT_NAMES)}; multiply some of them beforehand"
        )
    taken = {*match[1]}
    names = [make_unique_name(name, taken) for name in _INPUT_NAMES[: len(operands)]]
    inputs = {name: check_shape(name, shape) for name, shape in zip(names, shapes, strict=True)}
    stretched = _broadcast_dots(operands, tuple(inputs.values()))
    factors, extents = _name_factors(operands, inputs, stretched)
    out = _read_output(operands, match[2], stretched)
    if len(set(out)) != len(out) or not set(out) <= set(extents):
        raise InvalidInput(f"einsum: the output {match[2]!r} must name letters of the operands, each once")
    specs = tuple(TensorSpec(name, shape, parse_dtype(dtype)) for name, shape in inputs.items())
    products = _order_products(factors, _Factor(make_unique_name("C", taken), out or (None,)), extents)
    return _build_operator(specs, products, extents, dtype, acc_dtype, out_dtype)


def _broadcast_dots(operands: list[str], shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The extents of "...", broadcast as in NumPy: aligned at the last dimension."""
    found: tuple[int, ...] = ()
    for text, shape in zip(operands, shapes, strict=True):
        letters, dots = len(text.replace("...", "")), "..." in text
        if len(shape) < letters or (len(shape) > letters and not dots):
            raise InvalidInput(
                f"einsum: {text!r} names {'at least ' * dots}{letters} dimensions, "
                f"the shape {shape} has {len(shape)}"
            )
        own = shape[text.find(".") : text.find(".") + len(shape) - letters] if dots else ()
        rank = max(len(own), len(found))
        padded = [(1,) * (rank - len(x)) + x for x in (found, own)]
        for a, b in zip(*padded, strict=True):
            if a != b and 1 not in (a, b):
                raise InvalidInput(
                    f"einsum: '...' is {own} in {text!r} and {found} before it, which do not broadcast: "
                    f"{b} is neither {a} nor 1"
                )
        found = tuple(max(pair) for pair in zip(*padded, strict=True))
    return found


def _name_factors(
    operands: list[str], inputs: Mapping[str, tuple[int, ...]], stretched: tuple[int, ...]
) -> tuple[tuple[_Factor, ...], dict[str, int]]:
    """Each operand with its axes, and the extent of each axis, in order of appearance."""
    extents: dict[str, int] = {}
    batch_extents = dict(zip(_name_batch(stretched), stretched, strict=True))
    factors = []
    for text, (name, shape) in zip(operands, inputs.items(), strict=True):
        before, dots, after = text.partition("...")
        own = len(shape) - len(before) - len(after) if dots else 0
        batch = list(batch_extents)[len(batch_extents) - own :]
        index: list[str | None] = []
        for axis, extent in zip((*before, *batch, *after), shape, strict=True):
            if extent != batch_extents.get(axis, extent):
                index.append(None)
                continue
            index.append(axis)
            if extents.setdefault(axis, extent) != extent:
                raise InvalidInput(
                    f"einsum: {axis!r} is {extents[axis]} in one place and {extent} in another"
                )
        factors.append(_Factor(name, tuple(index)))
    return tuple(factors), extents


def _name_batch(stretched: tuple[int, ...]) -> tuple[str, ...]:
    """Names of the axes of "..."."""
    return tuple(f"batch{d}" for d in range(len(stretched)))


def _read_output(operands: list[str], subscripts: str | None, stretched: tuple[int, ...]) -> tuple[str, ...]:
    """The axes of the output; of the implicit form the letters that occur once, in alphabetical order."""
    batch, letters = _name_batch(stretched), "".join(operands).replace(".", "")
    if subscripts is None:
        return (*batch, *sorted(x for x in letters if letters.count(x) == 1))
    before, dots, after = subscripts.partition("...")
    if dots and not any("..." in text for text in operands):
        raise InvalidInput(f"einsum: the output {subscripts!r} has '...', which no operand has; leave it out")
    if batch and not dots:
        raise InvalidInput(f"einsum: the output {subscripts!r} lacks '...'; write '...{subscripts}'")
    return (*before, *batch, *after)


def _order_products(
    factors: Sequence[_Factor], output: _Factor, extents: Mapping[str, int]
) -> tuple[_Product, ...]:
    """The products that need the fewest operations, and of those the fewest products."""
    found: list[tuple[_Product, ...]] = [(_Product(output, tuple(factors)),)]
    for pair in itertools.combinations(factors, 2) if len(factors) > 2 else ():
        rest = [f for f in factors if f not in pair]
        needed = output.axes.union(*(f.axes for f in rest))
        kept = dict.fromkeys(a for f in pair for a in f.index if a in needed)
        made = _Product(_Factor("".join(f.name for f in pair), tuple(kept) or (None,)), pair)
        place = factors.index(pair[0])
        found.append((made, *_order_products([*rest[:place], made.output, *rest[place:]], output, extents)))
    return min(found, key=lambda products: (sum(p.count_flops(extents) for p in products), len(products)))


def _build_operator(
    inputs: tuple[TensorSpec, ...],
    products: tuple[_Product, ...],
    extents: Mapping[str, int],
    dtype: str,
    acc_dtype: str | None,
    out_dtype: str | None,
) -> Operator:
    """A compute for each product; all but the last have a number behind the names of their axes."""
    acc, usual = choose_accumulator_and_result(dtype, acc_dtype, None)
    between = acc if parse_dtype(out_dtype or usual) is acc else usual
    names, computes = [t.name for t in inputs], []
    for number, product in enumerate(products, 1):
        last = product is products[-1]
        own = {a: a if last else f"{a}{number}" for a in product.axes}
        reads = [
            Tensor(f.name)[tuple(0 if a is None else ex.Var(own[a]) for a in f.index)]
            for f in product.factors
        ]
        body = prod(reads[1:], start=reads[0])
        computes.append(
            make_compute(
                product.output.name,
                lambda body=body: body,
                {own[a]: extents[a] for a in product.output.index if a}
                or {"one" if last else f"one{number}": 1},
                {own[a]: extents[a] for a in product.summed_axes},
                names,
                "sum",
                parse_dtype(dtype),
                acc_dtype,
                out_dtype if last else between.name,
            )
        )
        names.append(product.output.name)
    return Operator("einsum", inputs, tuple(computes))
