"""Expressions, operators, Programs and the steps that rewrite them. Knows nobody else in ekc."""
