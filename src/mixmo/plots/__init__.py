"""Pictures, one file a kind. Each file prepares what is drawn as plain data, and draws it onto a matplotlib figure.

matplotlib is optional (`pip install mixmo[plots]`): without it, everything else works.
"""
