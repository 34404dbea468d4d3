"""TODO package ekc/search/sketches."""
