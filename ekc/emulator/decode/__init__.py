"""A kernel as Python text, written once: what every instruction does to arrays of lanes."""
