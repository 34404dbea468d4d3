"""Simulated training jobs on simulated GPUs, with a virtual clock; nothing here is a real GPU."""
