"""Training: schedule, batches, step, loop, checkpoints."""

from mixmo.engine.loop import Runtime, Stopped, train

__all__ = ["Runtime", "Stopped", "train"]
