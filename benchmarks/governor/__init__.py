"""Benchmarks of the clock governor: savings, search, period detection, cost, and kills of its processes.

`baselines` holds governors of other authors, `model` trees that predict a job's time and energy over the SM
clock. `ekc govern` uses neither.
"""
