"""Reader of ONNX files: a model of opset 13 or newer becomes a `Graph`."""

from __future__ import annotations

from types import ModuleType

from ekc.errors import InvalidInput


def import_onnx() -> ModuleType:
    """Import `onnx` and the parts of it that the reader needs. Raises `InvalidInput` naming the extra where
    it is missing."""
    try:
        import onnx
        import onnx.checker
        import onnx.defs
        import onnx.helper
        import onnx.inliner
        import onnx.numpy_helper
        import onnx.shape_inference
        import onnx.version_converter
    except ImportError as problem:
        raise InvalidInput("ONNX models need the package onnx: pip install 'ekc[onnx]'") from problem
    return onnx
