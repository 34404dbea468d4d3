"""A C++ library of the best kernels of a record file: which kernels, under which names, and its files."""
