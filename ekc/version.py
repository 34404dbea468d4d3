"""The version of ekc, written down once."""

__version__ = "0.1.0"
