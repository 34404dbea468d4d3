"""Modules compiled with naive schedules, which are fast to make."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ekc.ir.operator import Operator
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.models.build import build_model, derive_layers
from ekc.search.data.trial import Trial
from ekc.torch.module_graph import ModuleGraph, read_module
from ekc.torch.replace_layers import AttentionChoice, TunedLayers, keep_nodes, replace_layers
from tests.pytorch.small_models import convert, make_models


@cache
def read_model(name: str, dtype: Any = torch.float32) -> tuple[Any, Any, ModuleGraph]:
    """A small model, its inputs and its graph; an export takes a second."""
    module, inputs = convert(*make_models()[name], dtype)
    return module, inputs, read_module(module, inputs)


def make_naive_trials(ops: Any) -> dict[str, Trial]:
    """A naive schedule of each operator that takes 1 us."""
    return {op.digest: Trial(make_naive_schedule(op), "naive", "ok", latency_s=1e-6) for op in ops}


def compile_naively(
    module: Any,
    read: ModuleGraph,
    attention: str = "auto",
    is_tuned: Callable[[Operator], bool] = lambda op: True,
) -> Any:
    """A module whose layers have naive kernels, where `is_tuned` says so."""
    full = build_model(read.graph)
    ops = [layer.op for layer in full.layers]
    kept = frozenset(node.output for node in read.graph.nodes if node.kind == "attention")
    if kept and attention != "ekc":
        ops += [layer.op for layer in derive_layers(keep_nodes(read.graph, AttentionChoice(kept)))[0].layers]
    trials = make_naive_trials(filter(is_tuned, ops))
    tuned = TunedLayers("naive (simulated)", True, "sm_80", None, trials)
    return replace_layers(module, read, full, tuned, attention)
