"""Steps counted by a training framework's own hooks: no loop to wrap, and nothing imported unless asked for.

    with ekc.Governor() as governor:
        Trainer(..., callbacks=[transformers_callback(governor)]).train()

A step is an optimiser step: with gradient accumulation several batches make one.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ekc.errors import InvalidInput


class StepTracker(Protocol):
    """What counts steps: `ekc.Governor`."""

    def step(self) -> AbstractContextManager[None]:
        """Around one training step."""
        ...


def transformers_callback(steps: StepTracker) -> Any:
    """A `TrainerCallback` for the Trainer of Hugging Face. Raises `InvalidInput` without transformers."""
    base = _import_first("transformers", "transformers.trainer_callback").TrainerCallback
    return type("GovernorCallback", (base,), {"on_step_end": lambda self, *_, **__: _count_step(steps)})()


def lightning_callback(steps: StepTracker) -> Any:
    """A `Callback` for the Trainer of Lightning. Raises `InvalidInput` without lightning."""
    base = _import_first("lightning", "lightning.pytorch.callbacks", "pytorch_lightning.callbacks").Callback
    return type("GovernorCallback", (base,), {"on_train_batch_end": _GlobalStepHook(steps)})()


def optimizer_hook(steps: StepTracker, optimizer: Any) -> Any:
    """Counts each `optimizer.step()` of PyTorch; `.remove()` of what is returned ends that.

    Raises `InvalidInput` for an optimizer that takes no hooks (PyTorch before 2.0).
    """
    register = getattr(optimizer, "register_step_post_hook", None)
    if register is None:
        name = type(optimizer).__name__
        raise InvalidInput(f"{name} takes no hooks (PyTorch 2.0 and later do); use `with governor.step():`")
    return register(lambda *_: _count_step(steps))


class _GlobalStepHook:
    """Counts when Lightning's global step has moved: it stands still while gradients accumulate."""

    def __init__(self, steps: StepTracker) -> None:
        self._steps, self._last_global_step = steps, 0

    def __call__(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.global_step != self._last_global_step:
            self._last_global_step = trainer.global_step
            _count_step(self._steps)


def _count_step(steps: StepTracker) -> None:
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
