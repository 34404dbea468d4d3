"""Models of latency, power and register spills, and the acquisition function that the search optimises."""
