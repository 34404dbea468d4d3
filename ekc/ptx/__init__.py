"""PTX text as data: kernels with their instructions, control flow, and facts that follow from the text
alone."""
