"""Static analysis of launches and populations: operations, memory traffic, coalescing, guards, occupancy."""
