"""Counting instructions in PTX: text to blocks, loops to trip counts, blocks to dynamic counts."""
