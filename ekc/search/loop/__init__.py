"""TODO package ekc/search/loop."""
