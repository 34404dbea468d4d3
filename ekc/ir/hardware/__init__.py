"""Facts of the hardware: resource limits, capabilities of each architecture, shapes of matrix
instructions."""
