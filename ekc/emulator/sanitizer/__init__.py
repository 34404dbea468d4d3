"""The sanitizer: invalid accesses, races, and conflicts between blocks."""
