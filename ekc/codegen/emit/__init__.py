"""TODO package ekc/codegen/emit."""
