"""Initial weights of a training: random, or those of a trained network."""

import torch

from mixmo.data.types import Dataset
from mixmo.engine.norm import set_ghost
from mixmo.hub.loading import load
from mixmo.models import Ensemble
from mixmo.recipes.schema import Recipe
from mixmo.runs.directory import Run
from mixmo.storage.weights import differences, shapes
from mixmo.surgery.convert import convert
from mixmo.surgery.unmixing import enable_unmixing
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError
from mixmo.utils.rng import Stream


@on_cpu
def fresh_network(recipe: Recipe, dataset: Dataset, trained: bool = True) -> Ensemble:
    """Return the recipe's network with its initial weights, the same on every device; random ones if not `trained`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Stream(recipe.seed, torch.device("cpu")).at("weights").initial_seed())
        net = recipe.network(len(dataset.classes), recipe.seen(dataset.size), trained)
        if recipe.start is not None and trained:
            load_start(net, recipe, dataset)
    if recipe.unmix != "none":
        enable_unmixing(net)
    if recipe.ghost:
        set_ghost(net, recipe.ghost)
    return net


def load_start(net: Ensemble, recipe: Recipe, dataset: Dataset) -> None:
    """Fill the network with the weights and metadata of `start`; the heads are new unless the classes are the same."""
    given = load(str(recipe.start))
    same = (given.about and given.about.classes) == dataset.classes
    members = net.members if net.members != given.members else None
    classes = None if same else len(dataset.classes)
    converted = convert(given, members=members, classes=classes, diversity=recipe.diversity)
    if different := differences(shapes(net), shapes(converted)):
        reason = f"start = {recipe.start} is another network than the recipe's ({different[0]})"
        raise UserError(f"{reason}; give the model, depth, width, encoders and heads that it was trained with")
    net.load_state_dict(converted.state_dict())
    net.about = given.about


def start_normalisation(recipe: Recipe, dataset: Dataset, source: Ensemble | Run) -> Dataset:
    """Return the data set with the normalisation of the network to start from, in its metadata or in dataset.json."""
    if not (recipe.start or recipe.weights or recipe.pretrained):
        return dataset
    if isinstance(source, Run):
        record = source.read_dataset()
        return dataset._replace(mean=tuple(record["mean"]), std=tuple(record["std"]))
    return dataset if source.about is None else dataset._replace(mean=source.about.mean, std=source.about.std)
