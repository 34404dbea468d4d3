"""Steps counted by callbacks of training frameworks, which modules of the same names and signatures
replace."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ekc.errors import InvalidInput
from ekc.governor.governor import lightning_callback, optimizer_hook, transformers_callback
from ekc.governor.live.steps import StepCounter, StepReader


class StepCounts:
    """Counts steps with a `StepCounter`, read as the governor does."""

    def __init__(self, file: Path) -> None:
        self._counter, self.read_count = StepCounter(file), StepReader(file)

    def step(self) -> StepCounter:
        return self._counter


@pytest.fixture
def steps(tmp_path: Path) -> StepCounts:
    return StepCounts(tmp_path / "steps")


def install_fake_module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    parts = name.split(".")
    for count in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:count]), ModuleType(parts[count - 1]))
    monkeypatch.setitem(sys.modules, name, module)


class TrainerCallback:
    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None: ...

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None: ...


class Callback:
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None: ...


def test_transformers_callback_counts_steps(steps: StepCounts, monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_module(monkeypatch, "transformers.trainer_callback", TrainerCallback=TrainerCallback)
    callback = transformers_callback(steps)
    assert isinstance(callback, TrainerCallback)
    for _ in range(3):
        callback.on_step_begin(None, None, None, model=None)
        assert callback.on_step_end(None, None, None, model=None) is None
    assert steps.read_count() == 3.0


def test_lightning_callback_counts_optimiser_steps(
    steps: StepCounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake_module(monkeypatch, "lightning.pytorch.callbacks", Callback=Callback)
    callback = lightning_callback(steps)
    assert isinstance(callback, Callback)
    for batch in range(8):
        trainer = SimpleNamespace(global_step=(batch + 1) // 4)
        callback.on_train_batch_end(trainer, None, None, None, batch)
    assert steps.read_count() == 2.0


def test_optimizer_hook_counts_steps(steps: StepCounts) -> None:
    class Optimizer:
        def __init__(self) -> None:
            self.hooks: list[Any] = []

        def register_step_post_hook(self, hook: Any) -> str:
            self.hooks.append(hook)
            return "handle"

        def step(self) -> None:
            for hook in self.hooks:
                assert hook(self, (), {}) is None

    optimizer = Optimizer()
    assert optimizer_hook(steps, optimizer) == "handle"
    optimizer.step()
    optimizer.step()
    assert steps.read_count() == 2.0


def test_callbacks_name_a_missing_package(steps: StepCounts, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "lightning", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInput, match="transformers cannot be imported"):
        transformers_callback(steps)
    with pytest.raises(InvalidInput, match="lightning cannot be imported"):
        lightning_callback(steps)
    with pytest.raises(InvalidInput, match="object takes no hooks"):
        optimizer_hook(steps, object())
