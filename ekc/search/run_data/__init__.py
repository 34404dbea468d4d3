"""Data of runs for pictures and reports, from results of `ekc.tune` and from record files."""
