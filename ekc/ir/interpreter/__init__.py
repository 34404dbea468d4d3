"""What an operator means and what a Program computes, in NumPy, and whether a result agrees."""
