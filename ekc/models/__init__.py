"""Whole models: readers of PyTorch, ONNX and layer files, and the layers that ekc tunes.

>>> model = ekc.models.from_layers("layers.toml")
>>> result = ekc.tune_model(model, target="a100")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ekc.models.from_pytorch import from_exported, from_torch
    from ekc.models.layer_file import from_layers
    from ekc.models.model import Model
    from ekc.models.onnx_reader.read import from_onnx

_MODULE_BY_NAME = {
    "Model": "ekc.models.model",
    "from_exported": "ekc.models.from_pytorch",
    "from_layers": "ekc.models.layer_file",
    "from_onnx": "ekc.models.onnx_reader.read",
    "from_torch": "ekc.models.from_pytorch",
}
__all__ = ["Model", "from_exported", "from_layers", "from_onnx", "from_torch"]


def __getattr__(name: str) -> Any:
    """Import a public name from its module at the first use."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'ekc.models' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return __all__
