"""Governing a real job on this machine: its processes, its GPUs, what is shown and reported."""
