"""Reads modules and programs of PyTorch. It imports PyTorch inside functions only."""
