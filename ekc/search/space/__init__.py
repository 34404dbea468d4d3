"""The design space: genomes as arrays, their rules, their repair, and partitions for two processes."""
