"""TODO package ekc/ir/hardware."""
