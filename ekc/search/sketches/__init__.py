"""Structures of schedules: lists of steps with holes, derived from an operator by the rules in
`multi_level_tiling.py`.
"""
