"""A C++ library of compiled kernels: its data, names of functions, and files."""
