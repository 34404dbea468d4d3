"""The search on existing measurements: tables by other tuners, and recordings by ekc."""
