"""Training: schedule, batches, step, loop, scoring."""

from mixmo.engine.runtime import Runtime
from mixmo.engine.signals import Stopped
from mixmo.engine.training import train

__all__ = ["Runtime", "Stopped", "train"]
