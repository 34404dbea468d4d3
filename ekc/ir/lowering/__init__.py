"""A program lowered to the launches, buffers and nodes of its kernels."""
