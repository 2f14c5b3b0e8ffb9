"""Weights to begin a training with: random ones, or those of a network that was trained before."""

import torch

from mixmo.data.types import Dataset
from mixmo.engine.norm import set_ghost
from mixmo.hub.loading import load
from mixmo.models import Network
from mixmo.recipes.schema import Recipe
from mixmo.storage.weights import differences, shapes
from mixmo.surgery.convert import convert
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError
from mixmo.utils.rng import Stream


@on_cpu
def fresh_network(recipe: Recipe, dataset: Dataset, trained: bool = True) -> Network:
    """The recipe's network with its initial weights, the same on every device.

    Without `trained` they are random, also where the recipe names a network to start from.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Stream(recipe.seed, torch.device("cpu")).at("weights").initial_seed())
        net = recipe.network(len(dataset.classes), dataset.train.images.shape[3])
        if recipe.start is not None and trained:
            begin_with(net, recipe, dataset)
    if recipe.ghost:
        set_ghost(net, recipe.ghost)
    return net


def begin_with(net: Network, recipe: Recipe, dataset: Dataset) -> None:
    """Fill the network with the weights of the one to start from, converted to its members and to the data's classes.

    Its heads are kept where its classes have the names of the data's; else they are new.
    """
    given = load(str(recipe.start))
    if not isinstance(given, Network):
        raise UserError(f"start = {recipe.start} is a {type(given).__name__}; train it in a loop of your own")
    same = (given.about and given.about.classes) == dataset.classes
    members = net.members if net.members != given.members else None
    converted = convert(given, members=members, classes=None if same else len(dataset.classes))
    if different := differences(shapes(net), converted.state_dict()):
        raise UserError(
            f"start = {recipe.start} is another network than the recipe's ({different[0]}); give the model, depth, "
            "width, encoders and heads that it was trained with"
        )
    net.load_state_dict(converted.state_dict())
