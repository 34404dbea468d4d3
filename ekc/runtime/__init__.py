"""TODO package ekc/runtime."""
