"""Expressions, operators, Programs and the steps that rewrite them. Imports no other package of ekc."""
