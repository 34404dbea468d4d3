"""The record store: every measurement with its conditions, and what is read out of it again."""
