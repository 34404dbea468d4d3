"""Results compared with the float64 reference of an operator: tolerances, edge values."""
