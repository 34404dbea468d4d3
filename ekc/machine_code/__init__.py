"""Machine code of NVIDIA GPUs: what ptxas made of a kernel, decoded from its CUBIN, and how often it runs."""
