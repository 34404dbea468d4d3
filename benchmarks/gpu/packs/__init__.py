"""Packs: kernels compiled beforehand for a visit to a GPU, with predictions that are filed before it.

    python -m benchmarks.gpu.packs --device h100 --out h100.pack

`rule.py` says which schedules are in a pack, `make.py` compiles them, `file.py` is the file, and
`predictions.py` the figures that the simulated device claims of each kernel. `benchmarks/gpu/pack.py` runs a
pack on a GPU and compares.
"""
