"""Simulated devices: counts of the compiled code, memory traffic, latency, power, sensors."""
