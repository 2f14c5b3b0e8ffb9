"""The size of a network's images."""

from mixmo.errors import UserError
from mixmo.models.network import Ensemble, Network
from mixmo.wrapping.probe import check_size

Size = tuple[int, int, int]  # (C, H, W)
CIFAR = 32


def image_size(net: Ensemble, given: Size | None) -> Size:
    """(C, H, W) as given, or as the network knows it; a `Network` reads any size, CIFAR's where none is given."""
    if given is not None:
        check_size(given)
        return (given[0], given[1], given[2])
    known = getattr(net, "size", None)
    if known is not None:
        return tuple(known)
    if isinstance(net, Network):
        return (next(net.encoders[0].parameters()).shape[1], CIFAR, CIFAR)
    raise UserError("the size of the images is not known; give `size=(channels, height, width)`")
