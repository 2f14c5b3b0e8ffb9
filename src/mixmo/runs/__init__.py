"""Run directories: their files, their lock, their checkpoints, their networks."""

from mixmo.runs.directory import Run

__all__ = ["Run"]
