"""The design space: genomes as arrays, their rules and their repair."""
