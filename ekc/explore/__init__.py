"""The explorer: a local web page that leads through a space of schedules step by step."""
