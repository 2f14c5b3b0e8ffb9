"""Training: schedule, batches, step, loop, checkpoints."""

from mixmo.engine.loop import train
from mixmo.engine.runtime import Runtime
from mixmo.engine.signals import Stopped

__all__ = ["Runtime", "Stopped", "train"]
