"""A run directory: its files, its checkpoints, its network."""
