"""TODO package ekc/processes."""
