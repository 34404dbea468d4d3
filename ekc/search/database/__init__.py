"""The record store: measurements with their conditions, and queries of them."""
