"""Forms of operators as options of the command line and as keys of layer files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ekc.cli.arguments import parse_inputs
from ekc.cli.sources import read_model
from ekc.errors import InvalidInput
from ekc.models.layer_file import from_layers
from tests.cli.conftest import CommandLine

FORMS = [
    (
        "batch_matmul 2 6 7 8 --transpose-a --transpose-b",
        'operator = "batch_matmul"\nb = 2\nm = 6\nn = 7\nk = 8\ntranspose_a = true\ntranspose_b = true\n',
        "C[b, i, j] = sum[k < 8] A[b, k, i] * B[b, j, k]",
    ),
    (
        "conv2d 1 4 9 8 --out-channels 4 --stride 2x1 --padding same",
        'operator = "conv2d"\nn = 1\nc = 4\nh = 9\nw = 8\nout_channels = 4\n'
        'stride = [2, 1]\npadding = "same"\n',
        "X[n, c, p * 2 + r - 1, q + s - 1]",
    ),
    (
        "conv2d 1 4 9 8 --out-channels 4 --padding 2:0x1",
        'operator = "conv2d"\nn = 1\nc = 4\nh = 9\nw = 8\nout_channels = 4\npadding = [[2, 0], 1]\n',
        "X[n, c, p + r - 2, q + s - 1]",
    ),
    (
        "conv_transpose1d 1 4 9 --out-channels 4 --padding 1:0",
        'operator = "conv_transpose1d"\nn = 1\nc = 4\nw = 9\nout_channels = 4\npadding = [[1, 0]]\n',
        "Y[n, o, q]",
    ),
    (
        "layer_norm 2x6x5 --axes 0x1",
        'operator = "layer_norm"\nshape = [2, 6, 5]\naxes = [0, 1]\n',
        "mean[i2] = sum[i0 < 2, i1 < 6] X[i0, i1, i2] * 0.08333333333333333",
    ),
    (
        "rms_norm 2x6x5 --axes -2",
        'operator = "rms_norm"\nshape = [2, 6, 5]\naxes = -2\n',
        "square[i0, i2] = sum[i1 < 6]",
    ),
    (
        "reduce 2x6x5 --axes 1 --combine prod",
        'operator = "reduce"\nshape = [2, 6, 5]\naxes = 1\ncombine = "prod"\n',
        "Y[i0, i2] = prod[k1 < 6] X[i0, k1, i2]",
    ),
    (
        "reduce 2x6x5 --axes 1x2 --combine argmin",
        'operator = "reduce"\nshape = [2, 6, 5]\naxes = [1, 2]\ncombine = "argmin"\n',
        "Y[p0] = min[q1 < 6, q2 < 5] where(X[p0, q1, q2] == extreme[p0], q1 * 5 + q2,",
    ),
    (
        "softmax 2x6x5 --axis 1x2",
        'operator = "softmax"\nshape = [2, 6, 5]\naxis = [1, 2]\n',
        "top[i0] = max[i1 < 6, i2 < 5] X[i0, i1, i2]",
    ),
]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("ij,jk 4x6 6x5", "C[i, k] = sum[j < 6] A[i, j] * B[j, k]"),
        ("...ij,jk->...ik 2x4x6 6x5", "C[batch0, i, k] = sum[j < 6] A[batch0, i, j] * B[j, k]"),
        ("ij,jk,kl->il 2x30 30x3 3x40", "C[i, l] = sum[k < 3] AB[i, k] * D[k, l]"),
    ],
)
def test_command_line_takes_einsum_forms(words: str, text: str, cli: CommandLine) -> None:
    assert text in cli(f"show einsum {words}").out


@pytest.mark.parametrize(("command", "layer", "text"), FORMS, ids=[f[0].split()[0] for f in FORMS])
def test_command_line_and_layer_files_take_operator_forms(
    command: str, layer: str, text: str, cli: CommandLine
) -> None:
    assert text in cli(f"show {command}").out
    Path("net.toml").write_text(f'[[layer]]\nname = "one"\n{layer}')
    (layer,) = from_layers("net.toml").layers
    assert text in str(layer.op)


def test_inputs_have_shapes_or_values() -> None:
    given = parse_inputs(("x=8x3", "rate=value:16000", "sizes=value:1,2.5"))
    assert given == {"inputs": {"x": (8, 3)}, "values": {"rate": 16000, "sizes": [1, 2.5]}}
    with pytest.raises(InvalidInput, match="'fast' is no number; write rate=value:16000"):
        parse_inputs(("rate=value:fast",))
    with pytest.raises(InvalidInput, match="rate is given twice"):
        parse_inputs(("rate=value:1", "rate=2"))


@pytest.mark.parametrize(
    ("file", "message"),
    [("a.pt2", "only inputs of ONNX models have values; a.pt2"), ("a.toml", "a layer file has its types")],
)
def test_values_are_of_onnx_models(file: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_model(Path(file), {"values": {"rate": 1}})
