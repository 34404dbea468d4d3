"""PTX text as data: kernels with their instructions, control flow, and facts from the text alone."""
