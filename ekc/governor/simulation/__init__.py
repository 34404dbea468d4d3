"""Simulated training jobs on simulated GPUs, under a virtual clock; no real GPU is used."""
