"""Plain data that all of the search shares: populations, options, settings, candidates, results, events."""
