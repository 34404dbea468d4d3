"""The clock governor: steers the clocks of a running training job to the least energy within a slowdown budget."""
