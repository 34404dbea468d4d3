"""The design space: structures derived by rules, and their genomes as arrays."""
