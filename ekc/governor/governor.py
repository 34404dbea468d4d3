"""Governs the GPUs of a training script from within: `with ekc.Governor(max_slowdown=0.05): train()`.

Callbacks for training frameworks count steps without a change of the training loop:

    with ekc.Governor() as governor:
        Trainer(..., callbacks=[transformers_callback(governor)]).train()

A step is an optimiser step: with gradient accumulation several batches make one.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from numbers import Integral
from pathlib import Path
from typing import Any

from ekc.argument_checks import check_flag, format_value
from ekc.errors import InvalidInput
from ekc.forks import detach_in_children
from ekc.governor.live.steps import StepCounter
from ekc.governor.model_file import read_model_file
from ekc.governor.request import GovernorRequest, Policy, Tariff, check_name, parse_deadline

_GOVERN_COMMAND = (sys.executable, "-m", "ekc", "govern")
EXIT_TIMEOUT_S = 20.0
"""Seconds to wait for the governor process at the end of the block."""


class Governor:
    """Governs the GPUs of this process while the `with` block runs, and restores the previous settings then.

    `ekc govern --pid` does the work in a process of its own, so it takes no time from the training. Its
    failures do not affect the training: stderr gets one line. Under torchrun and similar launchers the first
    process of a machine governs all of its GPUs alike, and the others do nothing.

    `max_slowdown`: share by which a step may take longer. `objective`, `min_saving`, `remaining_s`: see
    `ekc.governor.Policy`. `power_cap_w`, `node_power_cap_w`: the fastest settings whose mean power is at most
    this, for each GPU or for all. `deadline`: least energy that ends in time ("2h", "18:30"), with
    `remaining_s` or `steps_total`, the steps of the whole job. `price` (money and currency) and `intensity`
    (grams of CO2) of a kWh: the report has money and CO2 saved. `remember`: a name under which the choice is
    kept for the next run. `model`: file of a model that says which clock is tried first. `gpus`: numbers as
    nvidia-smi counts, or UUIDs; by default those that this process uses. `each`: a control loop for each GPU
    instead of all alike. `actuator`: "auto", "nvml", "daemon" or "zeusd". `advise`: set nothing and report
    what would be set. `quiet`: print only failures.
    Raises `InvalidInput` for bad arguments.
    """

    def __init__(
        self,
        max_slowdown: float = 0.05,
        objective: str = "energy",
        *,
        min_saving: float = 0.05,
        remaining_s: float | None = None,
        power_cap_w: float | None = None,
        node_power_cap_w: float | None = None,
        deadline: str | None = None,
        steps_total: int | None = None,
        price: tuple[float, str] | None = None,
        intensity: float | None = None,
        remember: str | None = None,
        model: str | Path | None = None,
        gpus: Sequence[int | str] = (),
        each: bool = False,
        actuator: str = "auto",
        advise: bool = False,
        quiet: bool = False,
    ) -> None:
        policy = _make_policy(
            Policy(objective, max_slowdown, min_saving, remaining_s),
            power_cap_w,
            node_power_cap_w,
            deadline,
            steps_total,
        )
        tariff = _make_tariff(price, intensity)
        if remember is not None:
            check_name(remember, each=each, has_deadline=deadline is not None)
        if model is not None:
            read_model_file(Path(model))
        for name, value in (("each", each), ("advise", advise), ("quiet", quiet)):
            check_flag(name, value)
        is_list = isinstance(gpus, Sequence) and not isinstance(gpus, (str, bytes))
        if not is_list or any(isinstance(n, bool) or not isinstance(n, (Integral, str)) for n in gpus):
            raise InvalidInput(f"gpus: {format_value(gpus)} is no list of numbers or UUIDs; write gpus=[0]")
        GovernorRequest(policy, actuator=actuator)
        self._flags = _build_flags(policy, tariff, deadline, gpus, actuator)
        switches = {"--each": each, "--advise": advise, "--quiet": quiet}
        self._flags += [name for name, is_on in switches.items() if is_on]
        self._flags += [] if remember is None else ["--remember", remember]
        self._flags += [] if model is None else ["--model", str(model)]
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._folder_finalizer: weakref.finalize[..., Governor] | None = None
        self._step_counter: AbstractContextManager[None] = nullcontext()
        try:
            folder = Path(tempfile.mkdtemp(prefix="ekc-governor-"))
            self._folder_finalizer = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._step_counter = StepCounter(folder / "steps")
            self._folder = folder
        except OSError as problem:  # A full disk is no reason not to train.
            warnings.warn(f"ekc: no governor, since no file can be written for it ({problem})", stacklevel=2)
        detach_in_children(self)
        self.report: dict[str, Any] | None = None
        """After the block: the last line of `ekc govern --json`; None where nothing was governed."""

    def detach(self) -> None:
        """In a forked child: the governor process, its files and the count of steps are the parent's."""
        if self._folder_finalizer is not None:
            self._folder_finalizer.detach()
        self._process, self._folder, self._step_counter = None, None, nullcontext()

    def step(self) -> AbstractContextManager[None]:
        """Context of one training step; counted steps measure progress better than any sensor."""
        return self._step_counter

    def __enter__(self) -> Governor:
        if self._folder is None or os.environ.get("LOCAL_RANK", "0") != "0":
            return self
        files = ["--steps", f"{self._folder}/steps", "--json", f"{self._folder}/events"]
        family = ["--gpus-of", str(os.getppid())] if "LOCAL_RANK" in os.environ else []
        command = [*_GOVERN_COMMAND, "--pid", str(os.getpid()), *family, *files, *self._flags]
        try:
            self._process = subprocess.Popen(
                command, env=_build_environment(), stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as problem:
            warnings.warn(f"ekc: no governor could be started ({problem})", stacklevel=2)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._folder is not None:
            self._process.terminate()
            try:
                self._process.wait(EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # Its guard restores the settings.
            self.report = _read_report(self._folder / "events")
        self._process = None


def _make_policy(
    policy: Policy,
    power_cap_w: float | None,
    node_power_cap_w: float | None,
    deadline: str | None,
    steps_total: int | None,
) -> Policy:
    """The policy with a power cap or a deadline. Raises `InvalidInput` for arguments that exclude each
    other."""
    has_cap, usual = power_cap_w is not None or node_power_cap_w is not None, Policy()
    if has_cap and deadline is not None:
        raise InvalidInput("a power cap and a deadline: give one of them")
    for name in ("max_slowdown", "min_saving"):
        if (has_cap or deadline is not None) and getattr(policy, name) != getattr(usual, name):
            rival = "deadline" if deadline is not None else "the power cap"
            raise InvalidInput(f"{name}: {rival} replaces it; leave one of them out")
    return replace(
        policy,
        objective="speed" if has_cap and policy.objective == usual.objective else policy.objective,
        power_cap_w=power_cap_w,
        node_power_cap_w=node_power_cap_w,
        deadline_s=None if deadline is None else parse_deadline(deadline, datetime.now()),
        steps_total=steps_total,
    )


def _build_flags(
    policy: Policy, tariff: Tariff, deadline: str | None, gpus: Sequence[int | str], actuator: str
) -> list[str]:
    """Options of `ekc govern` that have values."""
    values = {
        "--objective": policy.objective,
        "--remaining": policy.remaining_s,
        "--actuator": actuator,
        "--power-cap": policy.power_cap_w,
        "--node-power-cap": policy.node_power_cap_w,
        "--deadline": deadline,
        "--steps-total": policy.steps_total,
        "--intensity": tariff.intensity,
    }
    if not policy.has_power_cap and deadline is None:
        values |= {"--max-slowdown": policy.max_slowdown, "--min-saving": policy.min_saving}
    words = [word for name, value in values.items() if value is not None for word in (name, str(value))]
    words += [] if tariff.price is None else ["--price", str(tariff.price), tariff.currency]
    return words + [word for gpu in gpus for word in ("--gpu", str(gpu))]


def _make_tariff(price: tuple[float, str] | None, intensity: float | None) -> Tariff:
    if price is None:
        return Tariff(intensity=intensity)
    if not isinstance(price, (tuple, list)) or len(price) != 2:
        raise InvalidInput(f"price: {format_value(price)} is no number with a currency; write (0.30, 'EUR')")
    return Tariff(price[0], price[1], intensity)


def _build_environment() -> dict[str, str]:
    """Environment in which the governor process imports this installation of ekc."""
    home = str(Path(__file__).parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}


def _read_report(file: Path) -> dict[str, Any] | None:
    """The last line, if it is a report; a killed governor or a full disk leaves an incomplete line."""
    try:
        last: dict[str, Any] = json.loads(file.read_text().splitlines()[-1])
        return last if last["event"] == "Report" and last["reports"] else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def transformers_callback(steps: Governor) -> Any:
    """A `TrainerCallback` for the Trainer of Hugging Face. Raises `InvalidInput` without transformers."""
    base = _import_first("transformers", "transformers.trainer_callback").TrainerCallback
    return type("GovernorCallback", (base,), {"on_step_end": lambda self, *_, **__: _count_step(steps)})()


def lightning_callback(steps: Governor) -> Any:
    """A `Callback` for the Trainer of Lightning. Raises `InvalidInput` without lightning."""
    base = _import_first("lightning", "lightning.pytorch.callbacks", "pytorch_lightning.callbacks").Callback
    return type("GovernorCallback", (base,), {"on_train_batch_end": _GlobalStepHook(steps)})()


def optimizer_hook(steps: Governor, optimizer: Any) -> Any:
    """Count each `optimizer.step()` of PyTorch until `.remove()` of the returned handle. Raises
    `InvalidInput` for an optimizer that takes no hooks (PyTorch before 2.0)."""
    register = getattr(optimizer, "register_step_post_hook", None)
    if register is None:
        name = type(optimizer).__name__
        raise InvalidInput(f"{name} takes no hooks (PyTorch 2.0 and later do); use `with governor.step():`")
    return register(lambda *_: _count_step(steps))


class _GlobalStepHook:
    """Counts changes of Lightning's global step, which is constant while gradients accumulate."""

    def __init__(self, steps: Governor) -> None:
        self._steps, self._last_global_step = steps, 0

    def __call__(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.global_step != self._last_global_step:
            self._last_global_step = trainer.global_step
            _count_step(self._steps)


def _count_step(steps: Governor) -> None:
    with steps.step():
        pass


def _import_first(package: str, *module_names: str) -> Any:
    problems = []
    for home in module_names:
        try:
            return importlib.import_module(home)
        except ImportError as problem:
            problems.append(str(problem))
    raise InvalidInput(f"{package} cannot be imported ({problems[0]}); use `with governor.step():`")
