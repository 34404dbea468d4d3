"""Energy of a kernel: windows of repeated launches, readings of power and energy counters."""
