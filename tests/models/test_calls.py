"""The calls of layers in a forward pass, as a network of known ones makes them."""

import pytest
import torch
from torch import Tensor, nn

from mixmo.models.calls import calls


class Net(nn.Module):
    """Calls `a` twice, overwrites what it gave, and calls layers that read or give other things than a tensor first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)
        self.listed, self.named, self.split = Listed(), Named(), Split()

    def forward(self, x: Tensor) -> Tensor:
        once = self.a(x).relu_()
        first, _ = self.split(self.a(once))
        return self.b(self.named(x=self.listed([first])))


class Listed(nn.Module):
    def forward(self, xs: list[Tensor]) -> Tensor:
        return xs[0]


class Named(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Split(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def test_calls_from_tensor_to_tensor_are_recorded_in_order() -> None:
    net, x = Net(), torch.randn(4, 3)
    out, seen = calls(net, dict(net.named_children()), x)
    once = net.a(x)
    twice = net.a(once.relu())
    expected = [("a", x, once), ("a", once.relu(), twice), ("b", twice, net.b(twice))]
    assert [call.name for call in seen] == [name for name, _, _ in expected]
    for call, (_, read, given) in zip(seen, expected, strict=True):
        torch.testing.assert_close(call.input, read)
        torch.testing.assert_close(call.output, given)  # before the activation overwrote it
    torch.testing.assert_close(out, net.b(twice))


def test_no_gradient_flows_through_a_cut() -> None:
    net, x = Net(), torch.randn(4, 3)
    layers = {"a": net.a, "b": net.b}
    calls(net, layers, x)[0].sum().backward()
    assert net.a.weight.grad is not None
    net.zero_grad()
    out, seen = calls(net, layers, x, cut=["a"])
    out.sum().backward()
    assert net.a.weight.grad is None
    assert net.b.weight.grad is not None
    assert seen[0].output.requires_grad  # what was seen is still what the layer made


@pytest.mark.parametrize("columns", [3, 5])
def test_hooks_are_removed(columns: int) -> None:
    """Also where the network cannot take the images."""
    net = Net()
    try:
        calls(net, {"a": net.a}, torch.randn(4, columns))
    except RuntimeError:
        assert columns == 5
    assert not net.a._forward_hooks
