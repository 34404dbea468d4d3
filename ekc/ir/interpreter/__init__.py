"""NumPy semantics: reference of operators, interpreter of Programs, tolerances, comparison of results."""
