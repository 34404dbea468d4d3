"""The schedule (from a file, the best of a record file, or the naive one) or the model that a command works
on. The reader of a model is chosen by the ending of its file."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ekc import devices
from ekc.cli.arguments import OperatorRequest, operator_arguments, refuse_unused_options
from ekc.cli.output import FILE, log
from ekc.errors import InvalidInput
from ekc.file_limits import parse_json, read_plain_file

if TYPE_CHECKING:
    from ekc.devices.device import Device
    from ekc.ir.schedule.schedule import Schedule
    from ekc.models.model import Model
    from ekc.search.data.trial import Trial


@dataclass(frozen=True)
class LocatedSchedule:
    """A schedule with its origin."""

    schedule: Schedule
    origin: str
    """Origin in words, for titles."""
    trial: Trial | None = None
    """Its figures, if it comes from a record file."""
    is_naive: bool = False
    """Whether no schedule was asked for."""


@dataclass(frozen=True)
class ScheduleSource:
    """The options of a command line that choose the schedule."""

    request: OperatorRequest
    schedule: Path | None
    records: Path | None
    target: str
    objective: str
    max_slowdown: float
    any_toolchain: bool

    def find_schedule(self) -> LocatedSchedule:
        """Find the schedule: the naive one if only an operator is given. Raises EkcError."""
        if self.schedule is not None:
            if not self.request.is_empty or self.records is not None:
                raise InvalidInput(
                    "--schedule: the file names its own operator; leave OPERATOR and --records out"
                )
            refuse_unused_options(RECORD_OPTIONS, "--schedule names the one schedule; leave one of them out")
            return LocatedSchedule(read_schedule(self.schedule), f"schedule of {self.schedule}")
        op = self.request.make_operator()
        if self.records is None:
            refuse_unused_options(
                RECORD_OPTIONS, "it chooses among the schedules of a record file; add --records FILE"
            )
            from ekc.ir.schedule.naive import make_naive_schedule

            naive = "naive schedule, one output element per thread"
            return LocatedSchedule(make_naive_schedule(op), naive, is_naive=True)
        from ekc.search.data.selection import SelectionRule
        from ekc.search.database.query import choose_best

        rule = SelectionRule(self.objective, self.max_slowdown)
        trial = choose_best(op, self.records, self.open_device(), rule, self.any_toolchain)
        elsewhere = trial.measured_elsewhere
        mark = f", measured elsewhere: {elsewhere}" if elsewhere else ""
        return LocatedSchedule(trial.schedule, f"best schedule of {self.records} {rule}{mark}", trial)

    def open_device(self) -> Device:
        """Open the device of --target. Raises `DeviceError`."""
        return devices.open(self.target)


def schedule_source(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with OPERATOR, --schedule, --records and --target, and the options that choose among
    records, passed as `source=ScheduleSource(...)`."""

    @operator_arguments
    @functools.wraps(command)
    def wrapped(**values: Any) -> Any:
        source = ScheduleSource(**{field.name: values.pop(field.name) for field in fields(ScheduleSource)})
        return command(source=source, **values)

    wrapped = target_option(choice_options(any_toolchain_option(wrapped)))
    for name, words in (
        ("records", "Take the best schedule of this record file."),
        ("schedule", "Take the schedule of this JSON file (ekc export writes one)."),
    ):
        wrapped = click.option(f"--{name}", type=FILE, help=words)(wrapped)
    return wrapped


CHOICE_OPTIONS = ("objective", "max_slowdown")
"""Parameters that define the best schedule."""
RECORD_OPTIONS = (*CHOICE_OPTIONS, "any_toolchain")
"""Parameters that choose among the schedules of a record file."""


def choice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with --objective and --max-slowdown, which define the best measured schedule."""
    wrapped = click.option(
        "--max-slowdown",
        type=float,
        default=0.05,
        show_default=True,
        help="How much slower than the fastest kernel the best may be: 0.05 is 5 %. Not used with "
        "--objective latency.",
    )(command)
    return click.option(
        "--objective",
        default="energy",
        show_default=True,
        help="Quantity to minimise: energy, latency or edp (energy-delay product).",
    )(wrapped)


any_toolchain_option: Callable[[Any], Any] = click.option(
    "--any-toolchain",
    is_flag=True,
    help="If the file has nothing metered under the present conditions, take the nearest: another NVRTC, "
    "generator or driver, other clocks, another device. It is compiled here and its figures are marked.",
)


target_option: Callable[[Any], Any] = click.option(
    "--target",
    default="auto",
    show_default=True,
    help="Device: auto, cuda:N, recorded:FILE, or a simulated GPU such as a100.",
)


def read_schedule(path: Path, option: str = "--schedule: ") -> Schedule:
    """Read the schedule of a JSON file: `Schedule.to_json`, or the record that `ekc export` writes."""
    from ekc.ir.schedule.schedule import Schedule

    try:
        text = read_plain_file(path).decode("utf-8-sig")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "not UTF-8 text"
        raise InvalidInput(f"{option}{path} cannot be read ({reason})") from problem
    try:
        data = parse_json(text)
    except ValueError as problem:
        raise InvalidInput(f"{option}{path} is not JSON ({problem})") from problem
    inner = _find_schedule_record(data, f"{option}{path}") if isinstance(data, dict) else None
    try:
        return Schedule.from_json(text if inner is None else json.dumps(inner))
    except InvalidInput as problem:
        raise InvalidInput(f"{option}{path}: {problem}") from problem


def _find_schedule_record(data: dict[str, Any], file: str) -> Any:
    """The schedule in the record of a library; None for another object."""
    kernels = data.get("kernels")
    if not isinstance(kernels, list) or not all(isinstance(k, dict) for k in kernels):
        return data.get("schedule")
    if len(kernels) != 1:
        digests = ", ".join(str(k.get("digest")) for k in kernels[:3])
        raise InvalidInput(
            f"{file} holds {len(kernels)} kernels ({digests}{', ...' * (len(kernels) > 3)}); "
            "write the schedule of one to a file of its own"
        )
    return kernels[0].get("schedule")


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
