"""Explanations of the energy difference of two schedules: by event, or by feature."""
