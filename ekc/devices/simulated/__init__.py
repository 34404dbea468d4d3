"""TODO package ekc/devices/simulated."""
