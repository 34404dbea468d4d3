"""Real NVIDIA GPUs: a worker process owns the CUDA context, the parent compiles and decides."""
