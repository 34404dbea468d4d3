"""Reader of ONNX files: a model of opset 13 or newer becomes a `Graph`."""

from ekc.lazy_names import OptionalPackage

onnx = OptionalPackage(
    "onnx",
    *("checker", "defs", "helper", "inliner", "numpy_helper", "shape_inference", "version_converter"),
    missing="ONNX models need the package onnx: pip install 'ekc[onnx]'",
)
