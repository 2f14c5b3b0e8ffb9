"""Initial weights of a training: random, or those of a trained network."""

import torch

from mixmo.data.types import Dataset
from mixmo.engine.norm import set_ghost
from mixmo.hub.loading import load
from mixmo.models import Network
from mixmo.recipes.schema import Recipe
from mixmo.runs.directory import Run
from mixmo.storage.weights import differences, shapes
from mixmo.surgery.convert import convert
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError
from mixmo.utils.rng import Stream


@on_cpu
def fresh_network(recipe: Recipe, dataset: Dataset, trained: bool = True) -> Network:
    """Return the recipe's network with its initial weights, the same on every device; random ones if not `trained`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Stream(recipe.seed, torch.device("cpu")).at("weights").initial_seed())
        net = recipe.network(len(dataset.classes), dataset.train.images.shape[3])
        if recipe.start is not None and trained:
            load_start(net, recipe.start, dataset)
    if recipe.ghost:
        set_ghost(net, recipe.ghost)
    return net


def load_start(net: Network, start: str, dataset: Dataset) -> None:
    """Fill the network with the weights and metadata of `start`; the heads are new unless the classes are the same."""
    given = load(start)
    if not isinstance(given, Network):
        raise UserError(f"start = {start} is a {type(given).__name__}; train it in your own loop")
    same = (given.about and given.about.classes) == dataset.classes
    members = net.members if net.members != given.members else None
    converted = convert(given, members=members, classes=None if same else len(dataset.classes))
    if different := differences(shapes(net), converted.state_dict()):
        reason = f"start = {start} is another network than the recipe's ({different[0]})"
        raise UserError(f"{reason}; give the model, depth, width, encoders and heads that it was trained with")
    net.load_state_dict(converted.state_dict())
    net.about = given.about


def start_normalisation(recipe: Recipe, dataset: Dataset, source: Network | Run) -> Dataset:
    """Return the data set with the normalisation of the network to start from, in its metadata or in dataset.json."""
    if recipe.start is None:
        return dataset
    if isinstance(source, Run):
        record = source.read_dataset()
        return dataset._replace(mean=tuple(record["mean"]), std=tuple(record["std"]))
    return dataset if source.about is None else dataset._replace(mean=source.about.mean, std=source.about.std)
