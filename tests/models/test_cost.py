"""Cost of wrapped backbones; that of the package's own networks is in test_networks.py."""

import pytest
import torch
from torch import Tensor, nn

import mixmo
from mixmo.models import multiply_adds, training_bytes

timm = pytest.importorskip("timm")
SIZE = (3, 224, 224)
PUBLISHED = {  # G multiply-adds of the papers and of timm's tables, M parameters
    "resnet50": (4.1, 25.56),
    "convnext_tiny": (4.5, 28.59),
    "vit_small_patch16_224": (4.6, 22.05),  # attention included
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_multiply_adds_are_the_published_ones(name: str) -> None:
    net = mixmo.wrap(timm.create_model(name), members=1, size=SIZE)
    operations, parameters = PUBLISHED[name]
    assert mixmo.models.parameters(net) / 1e6 == pytest.approx(parameters, abs=0.01)
    assert multiply_adds(net, SIZE) / 1e9 == pytest.approx(operations, rel=0.02)


def test_a_second_member_costs_a_stem_and_a_head() -> None:
    model = timm.create_model("test_resnet", num_classes=10)
    one, two = (multiply_adds(mixmo.wrap(model, members, size=(3, 32, 32)), (3, 32, 32)) for members in (1, 2))
    stem, head = model.conv1[0], model.fc
    assert two - one == stem.weight.numel() * 16 * 16 + head.weight.numel()


class Anchored(nn.Module):
    """A model that holds a tensor of its own, which does not move to other devices."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.shift = nn.Conv2d(3, 8, 3), nn.Linear(8, 5), torch.ones(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.stem(x) + self.shift).mean((2, 3)))


def test_models_that_cannot_leave_the_cpu_are_counted() -> None:
    net = mixmo.wrap(Anchored(), members=2, size=(3, 8, 8))
    assert multiply_adds(net, (3, 8, 8)) == 2 * (8 * 27 * 36 + 8 * 5)


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_vit"])
def test_training_bytes_is_a_lower_bound(name: str) -> None:
    """Of what autograd keeps between forward and backward."""
    net = mixmo.wrap(timm.create_model(name, num_classes=10), members=2)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    images = torch.randn(2, 4, *net.size)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = net.read(images)
    weights = sum(4 * p.numel() for p in net.parameters())
    activations = training_bytes(net, net.size, 4, "fp32") - 3 * weights
    assert logits.requires_grad
    assert 0.1 * sum(kept.values()) < activations <= sum(kept.values())
    assert training_bytes(net, net.size, 4, "fp16") == 3 * weights + activations // 2
