"""The arithmetic of the machine: pure functions of NumPy arrays, bit for bit where the ISA says so."""
