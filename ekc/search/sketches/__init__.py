"""Structures of schedules: step lists with holes, one module for each rule that derives them from an operator."""
