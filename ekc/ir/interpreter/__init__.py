"""NumPy semantics: reference of operators, tolerances, comparison of results."""
