"""Plain data that all of the search shares: populations, options, candidates, results, costs, events."""
