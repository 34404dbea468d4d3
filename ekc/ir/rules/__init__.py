"""Rules that a Program must keep before it can become a kernel."""
