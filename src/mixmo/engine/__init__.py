"""Training: schedule, batches, step, loop, checkpoints."""

from mixmo.engine.loop import Runtime, train
from mixmo.engine.signals import Stopped

__all__ = ["Runtime", "Stopped", "train"]
