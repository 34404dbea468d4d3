"""What the machine finds wrong: stray accesses, races, blocks in each other's way."""
