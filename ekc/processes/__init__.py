"""Processes beside the caller: a child that ends with its parent, jobs it runs, a pool, signals."""
