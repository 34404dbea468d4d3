"""`--model FILE`: the reader of a model by the ending of its file, and the options that it takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ekc.cli.output import FILE, log
from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.models.model import Model

READER_OPTIONS = ("dtype", "inputs", "values")
"""Options of an operator that a reader of models takes as well."""
LAYERS_WARNING = "ekc: warning: --layers will be gone in the next release; write --model"


def model_option(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a command with `--model FILE`, passed as `model`, and with its old name `--layers`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(layers: Path | None, model: Path | None, **values: Any) -> Any:
            if layers is None:
                return command(model=model, **values)
            if model is not None:
                raise InvalidInput("--layers and --model: give --model alone")
            trials = values.get("trials")
            log(LAYERS_WARNING + (", and --trials-per-layer for --trials" if trials is not None else ""))
            if trials is not None:
                values |= {"trials": None, "trials_per_layer": trials}
            return command(model=layers, **values)

        wrapped = click.option("--layers", type=FILE, hidden=True)(wrapped)
        return click.option("--model", type=FILE, help=help_text)(wrapped)

    return decorate


def read_model(file: Path, options: Mapping[str, object]) -> Model:
    """Read a model from a layer file (.toml), an ONNX file (.onnx) or a program of torch.export (.pt2).
    `options`: `dtype`, `inputs` and `values`, where given. Raises `InvalidInput`."""
    from ekc import models

    for name in options:
        if name not in READER_OPTIONS:
            raise InvalidInput(f"--{name.replace('_', '-')}: {file} has its operators itself; leave it out")
    if file.suffix == ".toml":
        for name in options:
            option = "input" if name in ("inputs", "values") else name
            raise InvalidInput(f"--{option}: a layer file has its types and shapes itself; leave it out")
        return models.from_layers(file)
    given: dict[str, Any] = {"dtype": options.get("dtype"), "shapes": options.get("inputs")}
    if file.suffix == ".onnx":
        model: Model = models.from_onnx(file, **given | {"values": options.get("values")})
    elif "values" in options:
        raise InvalidInput(f"--input: only inputs of ONNX models have values; {file} takes shapes")
    elif file.suffix == ".pt2":
        model = models.from_exported(file, **given)
    else:
        raise InvalidInput(
            f"--model: {file} is no .toml (layer file), .onnx or .pt2 (torch.export); rename it, or export it"
        )
    return model
