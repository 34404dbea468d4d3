"""Traces of walks over a schedule: recorded once, compiled to NumPy calls, replayed for a population."""
