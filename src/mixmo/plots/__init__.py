"""Figures, one file per kind. Each file prepares its data, then draws it onto a matplotlib figure.

matplotlib is optional (`pip install mixmo[plots]`): without it, everything else works.
"""
