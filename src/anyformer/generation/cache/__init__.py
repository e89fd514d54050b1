"""Texts that are read and written side by side, each with its own length: in fixed places, or joined for each step.

`base.py` says what rows are; `slots.py` keeps them in fixed places (`lanes.py` who stands where, `memories.py` what an
encoder gave); `joined.py` serves every other causal part.
"""
