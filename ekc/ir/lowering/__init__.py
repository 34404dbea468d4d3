"""TODO package ekc/ir/lowering."""
