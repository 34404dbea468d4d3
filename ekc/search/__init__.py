"""The search: a tuning run from its arguments to its result."""
