"""Walks over a schedule, recorded once and replayed for a population."""
