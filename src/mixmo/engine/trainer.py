"""One training, step by step, epoch by epoch; stopped at any time, it resumes to the same result."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import torch
from torch import Generator, Tensor

from mixmo.data.types import Dataset
from mixmo.engine.average import Average
from mixmo.engine.batch import Batches
from mixmo.engine.budget import fitted, measure
from mixmo.engine.display import Progress
from mixmo.engine.distributed import World, lost, reason
from mixmo.engine.initialization import fresh_network
from mixmo.engine.loggers import Logger, Loggers
from mixmo.engine.norm import synchronise
from mixmo.engine.preflight import check_logged, check_memory, describe, hold_out
from mixmo.engine.runtime import Runtime
from mixmo.engine.schedule import Schedule
from mixmo.engine.scoring import DivergedError, Scorer, check_answers, diverged
from mixmo.engine.source import each_step, plan
from mixmo.engine.step import Step, sgd
from mixmo.metrics.report import evaluate
from mixmo.models import multiply_adds, parameters
from mixmo.recipes.schema import Recipe
from mixmo.runs.checkpoint import Checkpoints, State
from mixmo.runs.directory import Run
from mixmo.runs.environment import environment
from mixmo.storage import checksums
from mixmo.storage.weights import save_tensors, to_bfloat16
from mixmo.utils.errors import UserError
from mixmo.utils.eval_mode import evaluating
from mixmo.utils.progress import Work
from mixmo.utils.rng import Stream
from mixmo.utils.signals import Flag, Stopped, stop_signals

AGREE = 16  # steps between two questions to the other processes whether to stop


class Trainer:
    """One training: network, optimiser, batches and where it stands."""

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        run: Run,
        runtime: Runtime,
        device: torch.device,
        loggers: Sequence[Logger] = (),
    ) -> None:
        self.recipe, self.dataset, self.run_folder, self.runtime, self.device = recipe, dataset, run, runtime, device
        self.world: World = runtime.world()
        self.train_split, held_out = hold_out(dataset.train, recipe.validation, recipe.seed)
        self.schedule = Schedule(recipe, len(self.train_split.labels))
        self.stream = Stream(recipe.seed, device)
        check_memory(recipe, dataset, device, self.world.size)
        self.checkpoints = Checkpoints(
            run.path / "checkpoints",
            recipe=run.path / "recipe.yaml",
            every=runtime.keep_every and runtime.keep_every * self.schedule.steps_per_epoch,
            shard_mb=runtime.shard_mb,
            compact=runtime.compact,
        )
        net = fresh_network(recipe, dataset, trained=self.checkpoints.latest() is None)
        self.net = net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.world.size > 1 and not recipe.ghost:
            self.net = synchronise(self.net, device)
        self.average = Average(self.net, recipe.average * self.schedule.steps_per_epoch) if recipe.average else None
        self.averaged = self.average.net if self.average else None
        self.scored = self.averaged or self.net
        self.scorer = Scorer(self.scored, recipe, dataset, held_out, self.world)
        self.optimizer = sgd(self.net, recipe, recipe.rate)
        self.batches = Batches(recipe, dataset, self.train_split, self.world.part(recipe.batch_size))
        self.state = self.checkpoints.load(self.net, self.optimizer, self.averaged) or State()
        self.best: dict[str, Tensor] | None = self.checkpoints.best(self.state)
        on_gpu = device.type == "cuda"
        compiled = on_gpu if runtime.compile is None else runtime.compile
        self.step = Step(
            self.net,
            self.optimizer,
            self.batches,
            model=self.world.network(self.net),
            precision=recipe.precision,
            compiled=compiled,
            graphed=on_gpu and compiled and self.world.size == 1,
        )
        self.step.meter.copy_(self.step.meter.new_tensor(self.state.meter))
        self.stopping = False
        named = [name.strip() for name in runtime.logger.split(",")] if runtime.logger else []
        self.loggers = Loggers([*named, *loggers] if self.world.writes else [], run.path)

    def fit(self, seconds: float) -> None:
        """Take as many epochs as this time allows, by the pace of the first steps; they are not kept."""
        with Work("fitting the epochs to the minutes"):
            pace = measure(self)
        recipe = self.world.told(fitted(self.recipe, self.schedule, pace, seconds))
        self.recipe, self.schedule = recipe, Schedule(recipe, len(self.train_split.labels))
        if self.world.writes:
            self.run_folder.write_recipe(recipe)

    def run(self, until: int | None = None) -> None:
        """Train to the end, or to step `until`; then or when a signal asks for it, save and stop."""
        with stop_signals() as stopped:
            self.describe()
            try:
                self.steps(until, stopped)
                self.loggers.finish("success")
            except BaseException as error:
                self.loggers.finish("interrupted" if isinstance(error, Stopped | KeyboardInterrupt) else "failed")
                with suppress(Exception):  # what went wrong first is what to say
                    self.checkpoints.wait()  # another training may begin here as soon as this one has ended
                if self.world.size > 1 and isinstance(error, RuntimeError) and lost(error):  # in a step or a scoring
                    raise UserError(self.lost_message(error)) from error
                raise

    def describe(self) -> None:
        """What the run directory says before the first step, or the first one since it was stopped."""
        run, state, world = self.run_folder, self.state, self.world
        if not world.writes:
            return
        (run.path / checksums.NAME).unlink(missing_ok=True)  # of a run that was finished before
        run.write("environment.json", json.dumps({**environment(self.device), "processes": world.size}, indent=2))
        run.write("dataset.json", json.dumps(describe(self.dataset, self.recipe), indent=2))
        lines = run.read_metrics(until=state.epochs_logged)
        run.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        state.logged = checksums.hash_lines(lines)
        self.loggers.start(self.recipe.to_dict(), lines)

    def steps(self, until: int | None, stopped: Flag) -> None:
        """Steps, epochs and checkpoints, as long as they last."""
        state, world = self.state, self.world
        last = self.schedule.steps if until is None else min(until, self.schedule.steps)
        saved = time.monotonic()
        self.net.train()
        with Progress(self.recipe, self.schedule, state.step) as progress:
            self.score_ended(progress)  # an epoch after which a training stopped because it could not be scored
            while state.step < last and not self.stopping:
                with self.learnt_stays(agreed=world.size == 1):
                    self.train_epoch(last, stopped, progress)
                if not math.isfinite(state.meter[0]):
                    raise diverged(f"the loss is {state.meter[0]} by step {state.step}", self.recipe)
                ended = self.score_ended(progress)
                kept = ended and self.runtime.keep_every and ended % self.runtime.keep_every == 0
                if kept or time.monotonic() - saved > self.runtime.save_seconds:
                    self.save()
                    saved = time.monotonic()
        self.save()
        self.checkpoints.wait()
        if state.step == self.schedule.steps:
            self.finish()
            if any(world.any(stopped())):  # what would come next, of an ensemble or a plan, must not
                raise Stopped("finished before it could stop; --resume goes on from there")
        elif self.stopping:
            raise Stopped(f"stopped after step {state.step} of {self.schedule.steps}; continue with --resume")

    @contextmanager
    def learnt_stays(self, agreed: bool) -> Iterator[None]:
        """Saves what was learnt if images cannot be read any more, and all processes have `agreed` where they are."""
        try:
            yield
        except DivergedError:
            raise
        except UserError:
            if agreed and math.isfinite(self.state.meter[0]):
                self.save()
                self.checkpoints.wait()
            raise

    def train_epoch(self, last: int, stopped: Flag, progress: Progress) -> None:
        """The rest of the epoch under way, or of it what fits between two checkpoints."""
        state, schedule = self.state, self.schedule
        epoch, began = schedule.epoch(state.step), time.monotonic()
        planned = plan(self.recipe, len(self.train_split.labels), epoch)
        start = epoch * schedule.steps_per_epoch
        end = min(last, start + schedule.steps_per_epoch)
        chance = self.batches.mixer.chance(schedule.progress(state.step))
        epoch_steps = each_step(self.recipe, self.train_split, planned, state.step - start, end - start, self.world)
        try:
            with closing(epoch_steps) as steps:
                for samples in steps:
                    draws = self.batches.draw(
                        samples.unique, self.stream.at("step", state.step), samples.partners, samples.pool
                    )
                    self.step(draws, schedule.lr(state.step), chance)
                    state.step += 1
                    if self.average:
                        self.average.update(state.step)
                    progress.step(state.step)
                    if self.world.size > 1 and state.step % AGREE and state.step < end:
                        continue
                    long = time.monotonic() - began > 10 * self.runtime.save_seconds
                    self.stopping, long = self.world.any(stopped(), long)
                    if self.stopping or long:
                        break
        finally:
            if self.world.size == 1:  # after an error too; several processes cannot agree then
                self.read_meter()
            state.seconds += time.monotonic() - began
        if self.world.size > 1:
            self.read_meter()
            if self.recipe.ghost:
                self.share_statistics()

    def read_meter(self) -> None:
        """The one wait for the device in an epoch."""
        self.state.meter = tuple(self.world.mean(self.step.meter).tolist())

    def share_statistics(self) -> None:
        """The running statistics of batch normalisation, over the ghost batches of all processes."""
        nets = (self.net, self.averaged) if self.averaged else (self.net,)
        for buffer in (buffer for net in nets for buffer in net.buffers() if buffer.is_floating_point()):
            buffer.copy_(self.world.mean(buffer))

    def score_ended(self, progress: Progress) -> int:
        """The number of the epoch that has just ended, scored if it is to be; 0 if none has or it was logged before."""
        epoch, rest = divmod(self.state.step, self.schedule.steps_per_epoch)
        if rest or epoch <= self.state.epochs_logged:
            return 0
        if epoch % self.runtime.score_every == 0 or epoch == self.recipe.epochs:
            with self.learnt_stays(agreed=True):
                progress.epoch(self.end_epoch())
        return epoch

    def end_epoch(self) -> dict[str, Any]:
        """Score the network, remember it if it is the best so far, log one line."""
        state, steps = self.state, self.schedule.steps_per_epoch
        began, since = time.monotonic(), state.step - steps * state.epochs_logged
        reports = {name: self.scorer.score(split) for name, split in self.scorer.splits.items()}
        top1 = reports[self.scorer.chooses].ensemble.top1
        if top1 > state.best_top1:
            state.best_top1, state.best_step = top1, state.step
            self.best = {name: tensor.clone() for name, tensor in self.scored.state_dict().items()}
        loss, accuracy = (total / since for total in state.meter)
        line = {
            "epoch": state.step // steps,
            "step": state.step,
            "lr": self.schedule.lr(state.step - 1),
            "p": self.batches.mixer.chance(self.schedule.progress(state.step - 1)),
            "train": {"loss": loss, "top1": accuracy},
            **{name: report.to_dict() for name, report in reports.items()},
            "seconds": round(state.seconds, 3),
            "evaluation_seconds": round(time.monotonic() - began, 3),
        }
        if self.world.writes:
            self.run_folder.add_metrics(line)
            self.loggers.log(line)
        state.logged = {
            **(state.logged or {}),
            **checksums.hash_lines([line]),
        }  # a copy: the other may be being saved
        state.epochs_logged, state.meter = state.step // steps, (0.0, 0.0)
        self.step.meter.zero_()
        return line

    def save(self) -> None:
        """A checkpoint, but not of what answers no more, such as weights that the last, unscored step made huge."""
        # Of noise: a network of one's own may divide by the deviation of an image.
        noise = torch.rand(1, *self.recipe.seen(self.dataset.size), generator=Generator().manual_seed(0), device="cpu")
        with evaluating(self.net), torch.no_grad():
            check_answers(self.net(noise.to(self.device)), self.recipe)
        if self.world.writes:
            self.checkpoints.save(self.state, self.net, self.optimizer, self.best, self.averaged)

    def finish(self) -> None:
        """Weights, logits in float32 and scores of the last and of the best epoch."""
        run, weights = self.run_folder, self.scored.state_dict()
        scores: dict[str, Any] = {
            "parameters": parameters(self.net),
            "multiply_adds": multiply_adds(self.net, self.recipe.seen(self.dataset.size)),
            "best_epoch": (self.state.best_step or 0) // self.schedule.steps_per_epoch,
            "best_by": self.scorer.chooses,
            "seconds": round(self.state.seconds, 3),
        }
        last = {name: tensor.clone() for name, tensor in weights.items()}
        best = last if self.best is None or self.state.best_step == self.state.step else self.best
        for which, chosen in (("best", best), ("last", last)):
            if which == "best" or best is not last:  # predict once where the last epoch is the best one
                stored = to_bfloat16(chosen) if self.runtime.compact else chosen
                self.scored.load_state_dict(stored)
                tensors = self.scorer.all_answers()
            scores[which] = evaluate(tensors["logits"].cpu(), tensors["labels"].cpu()).to_dict()
            if self.world.writes:
                save_tensors(tensors, run.path / f"logits-{which}.safetensors")
                save_tensors(stored, run.path / f"{which}.safetensors", self.runtime.shard_mb)
        if self.world.writes:
            check_logged(run, self.state, self.schedule.steps)  # the checksums to come would call right what is there
            run.finish(scores)
        self.world.told(None)  # nobody leaves before the files are there

    def lost_message(self, error: RuntimeError) -> str:
        latest = self.checkpoints.latest()
        kept = (
            "no checkpoint had been taken yet"
            if latest is None
            else f"the checkpoint of step {int(latest.name)} is whole"
        )
        return (
            f"another process of this training was lost by step {self.state.step} ({reason(error)}); "
            f"{kept}: start all of them again with --resume"
        )
