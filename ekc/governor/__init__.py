"""The clock governor: least energy for a running training job, within a slowdown budget, by its clocks."""
