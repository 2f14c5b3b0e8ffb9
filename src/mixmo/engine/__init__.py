"""Training: schedule, batches, step, loop, scoring."""

from mixmo.engine.runtime import Runtime
from mixmo.engine.training import train
from mixmo.utils.signals import Stopped

__all__ = ["Runtime", "Stopped", "train"]
