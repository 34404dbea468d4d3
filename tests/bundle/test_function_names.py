"""The names of the functions of a library, and which operators one function is for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import ekc
from ekc.codegen.library.function_plan import (
    NamedOperator,
    make_function_name,
    name_layers,
    name_recorded,
    plan_functions,
)
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.models.model import LayerUse, ModelLayer


def test_functions_are_grouped_by_all_but_extents() -> None:
    operators = [
        *(ekc.matmul(m, 64, 64) for m in (128, 16, 64)),
        ekc.matmul(64, 64, 64, dtype="float16"),
        ekc.matmul(64, 64, 64).epilogue(lambda c, bias: ekc.relu(c + bias), bias=(64,)),
        *(ekc.conv2d(1, 4, 8, 8, out_channels=4, kernel=3, padding=1, stride=s) for s in (1, 2)),
        *(ekc.layer_norm((4, n)) for n in (8, 16)),
    ]
    plans = {p.name: p for p in plan_functions([NamedOperator(op) for op in operators])}
    assert [op.inputs[0].shape[0] for op in plans["matmul_float32"].operators] == [16, 64, 128]
    assert {"matmul_float16", "matmul_epilogue_float32"} < plans.keys()
    # Strides and the number that a norm divides by are in the body: two functions each.
    assert len([name for name in plans if name.startswith("conv2d_float32_")]) == 2
    assert len([name for name in plans if name.startswith("layer_norm_float32_")]) == 2


def test_layers_of_one_name_and_kind_become_one_function() -> None:
    layers = [
        NamedOperator(ekc.matmul(16, 64, 64), "fc", "batch 16"),
        NamedOperator(ekc.matmul(1, 64, 64), "fc", "batch 1"),
    ]
    (plan,) = plan_functions(layers)
    assert [op.inputs[0].shape for op in plan.operators] == [(1, 64), (16, 64)]


def test_layers_of_one_name_that_differ_carry_their_model() -> None:
    layers = [
        NamedOperator(ekc.matmul(4, 4, 4), "fc", "net, batch 4"),
        NamedOperator(ekc.matvec(4, 4), "fc", "net, batch 1"),
        NamedOperator(ekc.softmax((4, 4)), "soft", "net, batch 1"),
    ]
    assert [p.name for p in plan_functions(layers)] == ["net_batch_1_fc", "net_batch_4_fc", "soft"]


def test_layers_of_no_model_that_differ_are_refused() -> None:
    layers = [NamedOperator(ekc.matmul(4, 4, 4), "fc"), NamedOperator(ekc.softmax((4, 4)), "fc")]
    with pytest.raises(InvalidInput, match="two layers are called 'fc'"):
        plan_functions(layers)


def test_models_whose_names_become_one_are_refused() -> None:
    layers = [
        NamedOperator(ekc.matmul(4, 4, 4), "fc", "net A"),
        NamedOperator(ekc.softmax((4, 4)), "fc", "net-A"),
    ]
    with pytest.raises(InvalidInput, match="the function net_A_fc would be matmul"):
        plan_functions(layers)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (NamedOperator(ekc.matmul(2, 2, 2), "fc", "a"), "two layers of a are called 'fc'.*fc_2"),
        (NamedOperator(ekc.matmul(4, 4, 4), "fc_info", "a"), "'fc_info' and 'fc' cannot both be functions"),
    ],
)
def test_layers_that_collide_are_refused(second: NamedOperator, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        plan_functions([NamedOperator(ekc.matmul(4, 4, 4), "fc", "a"), second])
    assert "\n" not in str(caught.value)


def make_layers(*layers: tuple[str, Operator]) -> list[NamedOperator]:
    return name_layers([ModelLayer(op, (LayerUse(name, "net", 1),)) for name, op in layers])


def test_layers_of_one_name_are_named_by_operator_and_not_by_order() -> None:
    layers = [
        ("mm", ekc.matmul(4, 4, 4)),
        ("mm", ekc.matmul(4, 4, 4, transpose_b=True)),
        ("x", ekc.matvec(4, 4)),
    ]
    names = {x.op.digest: x.name for x in make_layers(*layers)}
    assert names == {x.op.digest: x.name for x in make_layers(*layers[::-1])}
    assert [names[op.digest] for _, op in layers] == [*(f"mm_{op.digest[:8]}" for _, op in layers[:2]), "x"]
    plans = plan_functions(make_layers(*layers))
    assert [p.layers for p in plans] == [("mm",), ("mm",), ("x",)]


OTHERS = (
    ekc.matmul(8, 8, 8),
    ekc.matmul(8, 8, 8, transpose_a=True),
    ekc.matmul(8, 8, 8, dtype="float16"),
    ekc.matmul(16, 8, 8),
    *(ekc.conv2d(1, 4, h, 8, out_channels=4, kernel=3, padding=1, stride=2) for h in (7, 8)),
    ekc.conv2d(1, 4, 8, 8, out_channels=4, kernel=3),
    *(ekc.layer_norm((4, n)) for n in (8, 16)),
    *(ekc.softmax((8, 8), axis=axis) for axis in (0, 1)),
)


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_operator_of_a_record_file_keeps_its_name_among_others(number: int) -> None:
    """Convolutions of equal extents and other inputs, and transposed operators, have names of their own."""

    def name(operators: Sequence[Operator]) -> dict[str, str]:
        plans = plan_functions([name_recorded(op) for op in operators])
        return {op.digest: plan.name for plan in plans for op in plan.operators}

    rest = [op for i, op in enumerate(OTHERS) if i != number]
    everything = name(OTHERS)
    assert everything.items() >= name(rest).items()
    assert everything == name(OTHERS[::-1])
    assert len(set(everything.values())) == len(OTHERS) - 1  # Two products differ in extents alone.


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("layer1.1-2.conv1", "layer1_1_2_conv1"),
        ("0", "layer_0"),
        ("class", "class_"),
        ("list", "list_"),
        ("é", "layer"),
    ],
)
def test_layer_names_become_legal(layer: str, name: str) -> None:
    assert make_function_name(layer) == name
