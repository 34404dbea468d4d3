"""TODO package ekc/search/data."""
