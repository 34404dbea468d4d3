"""A machine for PTX text in NumPy: every lane of a grid at once, bit for bit where the ISA says so."""

from ekc.emulator.counters import Counters, SiteCount
from ekc.emulator.launch import launch
from ekc.emulator.report import Finding, Report

__all__ = ["Counters", "Finding", "Report", "SiteCount", "launch"]
