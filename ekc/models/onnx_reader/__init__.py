"""Reader of ONNX files: a model of opset 13 or newer becomes a `Graph`."""
