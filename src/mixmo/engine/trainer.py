"""Train one network: draw a batch, take a step, score every epoch, write checkpoints."""

import json
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from mixmo.data.types import Dataset
from mixmo.engine.average import Average
from mixmo.engine.batch import Batches, Draws
from mixmo.engine.budget import fit_epochs, measure
from mixmo.engine.convolutions import choose_kernels
from mixmo.engine.disk import Disk
from mixmo.engine.display import Progress, header
from mixmo.engine.distributed import World, lost_processes_named
from mixmo.engine.divergence import (
    DivergedError,
    check_loss,
    check_outputs,
    check_scale,
    nonfinite_record,
    steps_before,
)
from mixmo.engine.initialization import fresh_network, start_normalisation
from mixmo.engine.loggers import Logger, Loggers
from mixmo.engine.norm import average_statistics, synchronise
from mixmo.engine.optimizer import make_optimizer
from mixmo.engine.preflight import check_data, check_mask, check_memory, check_progress
from mixmo.engine.records import dataset_record, epoch_record, write_results
from mixmo.engine.runtime import Runtime
from mixmo.engine.schedule import Schedule
from mixmo.engine.scoring import Scored, Scorer
from mixmo.engine.source import Plan, each_step, hold_out, plan
from mixmo.engine.step import Step, parts_of
from mixmo.engine.teacher import check_teacher, load_teacher
from mixmo.models import multiply_adds, parameters
from mixmo.recipes.schema import Recipe
from mixmo.runs.checkpoint import Checkpoints, State
from mixmo.runs.directory import Run
from mixmo.runs.environment import environment
from mixmo.runs.network import check_checkpoint
from mixmo.storage import checksums
from mixmo.utils.errors import UserError
from mixmo.utils.eval_mode import evaluating
from mixmo.utils.progress import Work
from mixmo.utils.rng import Stream, seed_of
from mixmo.utils.signals import Stopped, stop_signals

AGREE = 16  # steps after which several processes agree on whether to stop


class Trainer:
    """One training: network, optimiser, batches, and the state that a checkpoint holds.

    A training that was stopped at any step continues to the same result, bit for bit.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        run: Run,
        runtime: Runtime,
        device: torch.device,
        loggers: Sequence[Logger] = (),
        rollbacks: int = 0,
    ) -> None:
        """`rollbacks`: how often the training went back to a checkpoint, if this is more than in the checkpoint."""
        self.recipe, self.run_folder, self.runtime, self.device = recipe, run, runtime, device
        self.world: World = runtime.world()
        self.train_split, held_out = hold_out(dataset.train, recipe.held_out(len(dataset.train.labels)), recipe.seed)
        self.labels = self.train_split.labels.cpu()
        self.schedule = Schedule(recipe, len(self.labels))
        self.checkpoints = Checkpoints(
            run.path / "checkpoints",
            recipe=run.path / "recipe.yaml",
            every=runtime.keep_every and runtime.keep_every * self.schedule.steps_per_epoch,
            shard_mb=runtime.shard_mb,
            compact=runtime.compact,
        )
        self.disk = Disk(run, self.checkpoints)
        latest = self.checkpoints.latest()
        if latest is not None:
            check_data(run, recipe, dataset)
            check_checkpoint(recipe, len(dataset.classes), recipe.seen(dataset.size), latest)
        net = fresh_network(recipe, dataset, trained=latest is None)
        check_mask(recipe, net, dataset.size)
        check_memory(net, recipe, dataset.size, device, self.world.size)
        self.dataset = start_normalisation(recipe, dataset, net if latest is None else run)
        self.net = net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.world.size > 1 and not recipe.ghost:
            self.net = synchronise(self.net, device)
        self.average = Average(self.net, recipe.average * self.schedule.steps_per_epoch) if recipe.average else None
        self.averaged = self.average.net if self.average else None
        self.scorer = Scorer(self.averaged or self.net, recipe, self.dataset, held_out, self.world)
        self.optimizer = make_optimizer(self.net, recipe)
        teacher = load_teacher(recipe, self.dataset)
        self.teacher = teacher and teacher.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        part = self.world.part(recipe.batch_size)
        self.batches = Batches(recipe, self.dataset, self.train_split, part, self.net)
        seen, first = recipe.seen(self.dataset.size), parts_of(part, recipe)[0]
        size = first.stop - first.start
        choose_kernels(self.net, seen, size, recipe.precision, device, self.world, runtime.kernels)
        self.state = self.checkpoints.load(self.net, self.optimizer, self.averaged) or State()
        check_progress(self.state, self.schedule, run)
        if teacher is not None:
            self.state.teacher = check_teacher(teacher, self.state.teacher, recipe, run)
        self.state.rollbacks = max(rollbacks, self.state.rollbacks)
        seed = recipe.seed if self.state.rollbacks == 0 else seed_of(recipe.seed, self.state.rollbacks)
        self.stream = Stream(seed, device)
        self.best: dict[str, Tensor] | None = self.checkpoints.best(self.state)
        self.scored: dict[str, Scored] | None = None  # of the last epoch
        on_gpu = device.type == "cuda"
        compiled = runtime.compiled(device)
        self.step = Step(
            self.net,
            self.optimizer,
            self.batches,
            model=self.world.network(self.net),
            teacher=self.teacher,
            compiled=compiled,
            graphed=on_gpu and compiled and self.world.size == 1,
            skip=runtime.on_nan == "skip",
        )
        if self.step.scaler is not None and self.state.loss_scale is not None:
            self.step.scaler.load(self.state.loss_scale)
        if self.state.maxima is not None:
            self.step.maxima.load(self.state.maxima)
        self.step.meter.copy_(self.step.meter.new_tensor(self.state.meter))
        self.stopping = False
        self.saved = time.monotonic()  # when the last checkpoint was written
        named = [name.strip() for name in runtime.logger.split(",")] if runtime.logger else []
        self.loggers = Loggers([*named, *loggers] if self.world.writes else [], run.path)

    def fit(self, seconds: float) -> None:
        """Choose the number of epochs that fit this time, from the pace of some first steps, which are undone."""
        steps = self.schedule.steps_per_epoch
        with Work("fitting the epochs to the minutes"), closing(self.draws(0, steps)) as draws:
            pace = measure(self.step, draws, steps, self.scorer, self.read_meter)
        self.state.meter = State.meter
        pace = pace._replace(scoring=pace.scoring / self.runtime.score_every)
        self.recipe = self.world.broadcast(fit_epochs(self.recipe, self.schedule, pace, seconds))
        self.schedule = Schedule(self.recipe, len(self.train_split.labels))
        if self.world.writes:
            self.run_folder.write_recipe(self.recipe)

    def run(self, until: int | None = None) -> None:
        """Train to the last step, or to step `until`; on a signal, save and stop before."""
        state, last = self.state, self.schedule.steps if until is None else min(until, self.schedule.steps)
        # Inside stop_signals: torchrun sends SIGTERM while the others find out which process was lost.
        with stop_signals() as stopped, lost_processes_named(self.world, self.run_folder.path), self.closed():
            self.begin()
            lines = header(self.schedule, self.dataset, self.net, self.device, self.run_folder.path, state.step)
            with Progress(self.schedule, state.step, lines) as progress:
                self.end_epoch(progress)  # one that ended before the training was stopped, but was not scored
                while state.step < last and not self.stopping and not self.has_converged():
                    self.train_epoch(last, stopped, progress)
                    self.checkpoint(self.end_epoch(progress))
            self.save_now()
            if state.step == self.schedule.steps or self.has_converged():
                self.finish()
                if any(self.world.any(stopped())):  # an ensemble or a plan must not go on with its next network
                    raise Stopped("finished before it could stop; --resume goes on from there")
            elif self.stopping:
                raise Stopped(
                    f"stopped after step {state.step} of {self.schedule.steps}; the same --out with --resume continues"
                )

    def has_converged(self) -> bool:
        """Return whether the best epoch is more than `patience` epochs ago: training ends early."""
        state, each = self.state, self.schedule.steps_per_epoch
        if not self.recipe.patience or state.best_step is None:
            return False
        return state.epochs_logged - state.best_step // each >= self.recipe.patience

    def begin(self) -> None:
        """Write what a run directory says before the first step; drop log lines after the checkpoint."""
        run, state, world = self.run_folder, self.state, self.world
        self.net.train()
        self.saved = time.monotonic()
        if not world.writes:
            return
        (run.path / checksums.NAME).unlink(missing_ok=True)  # of a run that was finished before
        made_with = {**environment(self.device), "processes": world.size, "options": self.runtime.options(self.device)}
        run.write("environment.json", json.dumps(made_with, indent=2))
        run.write("dataset.json", json.dumps(dataset_record(self.dataset, self.recipe), indent=2))
        lines = run.read_metrics(until=state.epochs_logged)
        run.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        state.logged = checksums.hash_lines(lines)
        self.loggers.start(self.recipe.to_dict(), lines)

    def train_epoch(self, last: int, stopped: Callable[[], bool], progress: Progress) -> None:
        """Take the steps of the rest of the epoch, or as many as fit between two checkpoints."""
        state, schedule, world, began = self.state, self.schedule, self.world, time.monotonic()
        end = min(last, (schedule.epoch(state.step) + 1) * schedule.steps_per_epoch)
        progress_made = schedule.progress(state.step)
        p = self.batches.mixer.chance(progress_made)
        with self.saved_if_unreadable(agreed=world.size == 1):
            try:
                with closing(self.draws(state.step, end)) as batches:
                    for draws in batches:
                        self.step(draws, schedule.lr(state.step), p, progress_made)
                        state.step += 1
                        if self.average:
                            self.average.update(state.step)
                        progress.step(state.step)
                        if world.size > 1 and state.step % AGREE and state.step < end:
                            continue
                        long = time.monotonic() - began > 10 * self.runtime.save_seconds
                        self.stopping, long = world.any(stopped(), long)
                        if self.stopping or long:
                            break
            finally:
                if world.size == 1:  # after an error too; several processes cannot agree then
                    self.read_meter()
                state.seconds += time.monotonic() - began
        if world.size > 1:
            self.read_meter()
            if self.recipe.ghost:
                average_statistics(self.net, self.averaged, world)
        self.check_loss()

    def check_loss(self) -> None:
        """Record the first step of the epoch whose loss is NaN or infinite; raise an error unless such are skipped."""
        state, file = self.state, self.run_folder.path / "nonfinite.json"
        check_scale(self.step.scaler, state.step, self.recipe)
        if (first := steps_before(state)) is None:
            return
        if self.world.writes:
            latest = self.checkpoints.latest()
            checkpoint = None if latest is None else int(latest.name)
            self.disk.write(file, nonfinite_record(first, state, self.stream.seed, self.images_of(first), checkpoint))
        check_loss(state, first, self.schedule.steps_per_epoch, file, self.recipe)

    def images_of(self, step: int) -> list[int]:
        """Return the numbers of the training images of a step, among those that are not held out."""
        epoch, place = divmod(step, self.schedule.steps_per_epoch)
        return self.plan(epoch).unique[place].tolist()

    def plan(self, epoch: int) -> Plan:
        """Draw the order of the samples of an epoch."""
        return plan(self.recipe.replace(seed=self.stream.seed), len(self.labels), epoch, self.labels)

    def draws(self, first: int, last: int) -> Generator[Draws]:
        """Draw the batches of the steps `first` to `last` (exclusive) of one epoch."""
        epoch = self.schedule.epoch(first)
        start, planned = epoch * self.schedule.steps_per_epoch, self.plan(epoch)
        samples = each_step(self.recipe, self.train_split, planned, first - start, last - start, self.world)
        with closing(samples):
            for step, sample in enumerate(samples, first):
                yield self.batches.draw(sample.unique, self.stream.at("step", step), sample.partners, sample.pool)

    def read_meter(self) -> None:
        """Read loss and accuracy from the device: the one wait for it in an epoch."""
        self.state.meter = tuple(self.world.mean(self.step.meter).tolist())

    def end_epoch(self, progress: Progress) -> int:
        """Return the number of the epoch that has just ended, scored if due; 0 if none has, or it was scored before."""
        epoch, rest = divmod(self.state.step, self.schedule.steps_per_epoch)
        if rest or epoch <= self.state.epochs_logged:
            return 0
        if epoch % self.runtime.score_every == 0 or epoch == self.recipe.epochs:
            with self.saved_if_unreadable():
                progress.epoch(self.score())
        return epoch

    def score(self) -> dict[str, Any]:
        """Score the network, keep its weights if they are the best so far, log the epoch; return its record."""
        state, began = self.state, time.monotonic()
        scored = {name: self.scorer.score(split) for name, split in self.scorer.splits.items()}
        self.scored = scored
        chosen = scored[self.scorer.chooses].report.ensemble
        if (chosen.top1, -chosen.nll) > (state.best_top1, -state.best_nll):  # few images have many ties of Top1
            state.best_top1, state.best_nll, state.best_step = chosen.top1, chosen.nll, state.step
            self.best = {name: tensor.clone() for name, tensor in self.scorer.net.state_dict().items()}
        record = epoch_record(state, self.schedule, scored, time.monotonic() - began)
        if self.world.writes:
            self.disk.log(record)
            self.loggers.log(record)
        state.logged = (state.logged or {}) | checksums.hash_lines([record])  # a copy: one may be being saved
        state.epochs_logged, state.meter = record["epoch"], State.meter
        self.step.meter.zero_()
        return record

    def checkpoint(self, epoch: int) -> None:
        """Save if enough time has passed, or if the checkpoint of this epoch is to be kept."""
        kept = epoch and self.runtime.keep_every and epoch % self.runtime.keep_every == 0
        if kept or time.monotonic() - self.saved > self.runtime.save_seconds:
            self.disk.settle()
            self.save()
            self.saved = time.monotonic()

    def save(self) -> None:
        """Write a checkpoint, unless the last, unscored step made the outputs infinite."""
        # Noise, since a user-defined network may divide by the standard deviation of an image.
        size = self.recipe.seen(self.dataset.size)
        noise = torch.rand(1, *size, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
        with evaluating(self.net), torch.no_grad():
            check_outputs(self.net(noise.to(self.device)), self.recipe)
        self.state.loss_scale = None if self.step.scaler is None else self.step.scaler.state()
        self.state.maxima = self.step.maxima.state()
        if self.world.writes:
            self.checkpoints.save(self.state, self.net, self.optimizer, self.best, self.averaged)

    def save_now(self) -> None:
        """Write a checkpoint in any case, and wait for it; the one before may have failed."""
        self.disk.finish()
        self.save()
        self.checkpoints.wait()

    def finish(self) -> None:
        """Write weights, float32 logits and scores of the last and of the best epoch."""
        state = self.state
        summary = {
            "parameters": parameters(self.net),
            "multiply_adds": multiply_adds(self.net, self.recipe.seen(self.dataset.size)),
            "best_epoch": (state.best_step or 0) // self.schedule.steps_per_epoch,
            "best_by": self.scorer.chooses,
            "seconds": round(state.seconds, 3),
        }
        best = None if state.best_step == state.step else self.best
        write_results(self.run_folder, self.scorer, best, self.scored, summary, self.runtime)
        self.world.broadcast(None)  # no process leaves before the files are there

    @contextmanager
    def saved_if_unreadable(self, agreed: bool = True) -> Iterator[None]:
        """Save where images cannot be read any more, if the processes are `agreed` on the step that they are at."""
        try:
            yield
        except DivergedError:
            raise
        except UserError:
            if agreed and math.isfinite(self.state.meter[0]):
                self.save_now()
            raise

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Close the loggers and wait for the checkpoint that is being written, however the training ends."""
        try:
            yield
        except BaseException as error:
            self.loggers.finish("interrupted" if isinstance(error, Stopped | KeyboardInterrupt) else "failed")
            with suppress(Exception):  # the first error is the one to report
                self.checkpoints.wait()
            raise
        self.loggers.finish("success")
