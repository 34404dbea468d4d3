"""Counts of executed instructions from PTX text: loops -> trip counts -> runs of blocks -> counts."""
