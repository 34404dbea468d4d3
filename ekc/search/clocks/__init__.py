"""Schedules and SM clocks searched together: figures of kernels over clocks, and plans of one clock."""
