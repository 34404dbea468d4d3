"""Reads modules and programs of PyTorch. It imports PyTorch at its first use."""

from ekc.lazy_names import OptionalPackage

torch = OptionalPackage("torch", "export", missing="reading a PyTorch model needs PyTorch: pip install torch")
