"""Structures of schedules: lists of steps with holes, derived from an operator by one rule a module."""
