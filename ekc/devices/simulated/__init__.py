"""Simulated devices: counts of the compiled code, memory traffic, latency, power and sensors of a GPU
model."""
