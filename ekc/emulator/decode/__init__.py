"""The decoder: a kernel as Python functions, one for each basic block, that work on arrays of lanes."""
