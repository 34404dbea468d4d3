"""Lowering of a Program to launches: trees of nodes with buffers, addresses and guards."""
