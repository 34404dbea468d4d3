"""The search of a whole model: its layers share one budget of trials, in turns."""
