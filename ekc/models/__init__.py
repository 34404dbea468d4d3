"""Whole models: readers of PyTorch, ONNX and layer files, and the layers that ekc tunes.

>>> model = ekc.models.from_layers("layers.toml")
>>> result = ekc.tune_model(model, target="a100")
"""

from ekc.lazy_names import list_names

__getattr__, __dir__, __all__ = list_names(__name__)
