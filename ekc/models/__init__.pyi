"""The public names of ekc.models and where each is."""

from ekc.models.layer_file import from_layers as from_layers
from ekc.models.model import Model as Model
from ekc.models.onnx_reader.read import from_onnx as from_onnx
from ekc.models.torch_reader.read import from_exported as from_exported
from ekc.models.torch_reader.read import from_torch as from_torch
