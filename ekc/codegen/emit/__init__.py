"""Text of each kind of node: names, loops, copies, accumulators, tensor-core instructions, addresses."""
