"""TODO package ekc/devices/metering."""
