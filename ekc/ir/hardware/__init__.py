"""Facts of the hardware: resource limits, capabilities of architectures, shapes of matrix instructions."""
