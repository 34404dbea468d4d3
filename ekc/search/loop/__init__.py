"""The search loop: rounds of breeding, measuring and learning; finals; the stopping rule."""
