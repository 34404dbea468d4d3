"""PTX text as data: what is written in a kernel, and what follows from its text alone."""
