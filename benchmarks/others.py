"""Against others at equal cost: BatchEnsemble, Packed-Ensembles and MC dropout beside the methods of this package.

    timeout 28m python benchmarks/others.py --data data --out runs/others     # on a GPU; the same command continues
    python benchmarks/others.py --smoke --out runs/others-smoke               # on the digits, to see that it works
    mixmo eval runs/others/runs/RUN --plugin benchmarks/others.py

Needs torch-uncertainty: the three others are its own layers in the WRN-28-4 of this package, trained by its engine and
protocol (batch 64, 300 epochs; batch 256 in ghost batches of 64 where b = 4). They have 4 members, as in the papers of
BatchEnsemble (https://arxiv.org/abs/2002.06715) and Packed-Ensembles (https://arxiv.org/abs/2210.09184, alpha = 2); MC
dropout has 4 samples. As those papers do, they average the members' probabilities; the stored logits of BatchEnsemble
and MC dropout are the logarithm of that average. MIMO, MixMo and the deep ensemble average logits. The rows go into
others.json in the output folder and are printed as a table.

Importing this file registers the networks `batch-ensemble`, `packed` and `mc-dropout`, so it is a --plugin too.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import mixmo  # noqa: F401  before torch-uncertainty: it makes torchvision importable
from mixmo.engine import Runtime
from mixmo.metrics import evaluate
from mixmo.models import FAMILIES, Ensemble, Parts, parameters
from mixmo.models.network import initialise
from mixmo.models.wrn import Block, wrn
from mixmo.recipes import named
from mixmo.recipes.protocols import FACTS
from mixmo.recipes.schema import Recipe
from mixmo.reproduce.evidence import spread
from mixmo.reproduce.execute import run_here
from mixmo.reproduce.store import Store
from mixmo.storage.files import atomic_write
from mixmo.utils.signals import Stopped

MEMBERS = 4
ALPHA = 2  # of Packed-Ensembles: the network is so many times as wide, in MEMBERS groups
DROPOUT = 0.1


class Averaged(nn.Module):
    """A head that at test time returns the logarithm of the members' mean probabilities."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features_NF: Tensor) -> Tensor:
        logits: Tensor = self.head(features_NF)
        return logits if self.training else mean_probabilities(logits.unflatten(0, (MEMBERS, -1)))


def mean_probabilities(logits_MNK: Tensor) -> Tensor:
    """log(1/M sum_m softmax(z_m)), logits of the mean of the members' probabilities (N, K)."""
    return logits_MNK.float().log_softmax(-1).logsumexp(0) - math.log(len(logits_MNK))


class Repeated(nn.Module):
    """An encoder that at test time reads every image once for each member; in training each member has its part."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        encoded: Tensor = self.encoder(images if self.training else images.repeat(MEMBERS, 1, 1, 1))
        return encoded


class OnMaps(nn.Module):
    """A 1x1 convolution as a dense layer: torch-uncertainty's dense BatchEnsemble layer cannot be recorded on a GPU."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, features_NF: Tensor) -> Tensor:
        logits: Tensor = self.layer(features_NF[:, :, None, None])
        return logits.flatten(1)


class Group(nn.Module):
    """The head of one packed member, which reads its own group of the features."""

    def __init__(self, member: int, head: nn.Module) -> None:
        super().__init__()
        self.member, self.head = member, head

    def forward(self, features_NF: Tensor) -> Tensor:
        logits: Tensor = self.head(features_NF.chunk(MEMBERS, 1)[self.member])
        return logits


def batch_ensemble(depth: int, width: int) -> Parts:
    """BatchEnsemble: every convolution is shared, with factors of each member; a batch is shared out to the members."""
    from torch_uncertainty.layers import BatchConv2d

    def rank_one(layer: nn.Conv2d) -> nn.Module:
        made: nn.Module = BatchConv2d.from_conv2d(layer, MEMBERS)
        return initialise(made)

    plain = wrn(depth, width)
    return plain._replace(
        encoder=lambda channels: Repeated(rank_one(nn.Conv2d(channels, 16, 3, padding=1, bias=False))),
        core=lambda channels: each_convolution(plain.core(channels), rank_one),
        head=lambda classes: Averaged(OnMaps(rank_one(nn.Conv2d(64 * width, classes, 1)))),
    )


def packed(depth: int, width: int) -> Parts:
    """Packed-Ensembles: members are the groups of convolutions; every member is trained on every image."""
    from torch_uncertainty.layers import PackedConv2d

    def grouped(layer: nn.Conv2d) -> nn.Module:
        channels = layer.in_channels // ALPHA, layer.out_channels // ALPHA
        shape: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding, "bias": False}
        made: nn.Module = PackedConv2d(*channels, layer.kernel_size, ALPHA, MEMBERS, **shape)
        return initialise(made)

    plain, member, encoded = wrn(depth, ALPHA * width), itertools.count(), 16 * ALPHA // MEMBERS
    features = 64 * ALPHA * width // MEMBERS
    return plain._replace(
        encoder=lambda channels: initialise(nn.Conv2d(channels, encoded, 3, padding=1, bias=False)),
        encoded=encoded,
        core=lambda channels: each_convolution(plain.core(channels), grouped),
        head=lambda classes: Group(next(member), initialise(nn.Linear(features, classes))),
    )


def mc_dropout(depth: int, width: int) -> Parts:
    """MC dropout: dropout between the convolutions of each block, at test time too."""
    from torch_uncertainty.methods import mc_dropout as sampled

    def core(channels: int) -> nn.Module:
        stages = plain.core(channels)
        for block in stages.modules():
            if isinstance(block, Block):
                block.conv2 = nn.Sequential(nn.Dropout(DROPOUT), block.conv2)  # type: ignore[assignment]
        made: nn.Module = sampled(stages, MEMBERS)
        return made

    plain = wrn(depth, width)
    return plain._replace(core=core, head=lambda classes: Averaged(plain.head(classes)))


def each_convolution(core: nn.Module, convert: Callable[[nn.Conv2d], nn.Module]) -> nn.Module:
    """Replace every convolution."""
    for name, layer in list(core.named_modules()):
        if isinstance(layer, nn.Conv2d):
            core.set_submodule(name, convert(layer))
    return core


FAMILIES |= {"batch-ensemble": batch_ensemble, "packed": packed, "mc-dropout": mc_dropout}


class Method(NamedTuple):
    label: str
    recipes: list[Recipe]  # of an ensemble several
    probabilities: bool = False  # average them instead of logits


def methods(smoke: bool) -> list[Method]:
    """The rows of the table."""
    dataset = "digits" if smoke else "cifar100"
    common: dict[str, Any] = {"width": 1, "epochs": 2} if smoke else {"width": 4, "precision": "bf16"}
    repeated = {"repetition": 4, "batch_size": 256, "ghost": 64}

    def recipe(method: str, **changes: Any) -> Recipe:
        return named(f"{dataset}/{method}").replace(**common, **changes)

    vanilla = recipe("vanilla")
    independent = {"model": "packed", "members": MEMBERS, "rho": 1.0, "repetition": 1}
    return [
        Method("one network", [vanilla]),
        Method("CutMix", [recipe("cutmix")]),
        Method("MIMO, M = 2, b = 1", [recipe("mimo", repetition=1)]),
        Method("MIMO, M = 2, b = 4", [recipe("mimo", **repeated)]),
        Method("Cut-MixMo, M = 2, b = 1", [recipe("cut-mixmo", repetition=1)]),
        Method("Cut-MixMo, M = 2, b = 4", [recipe("cut-mixmo", **repeated)]),
        Method("deep ensemble of 2", [vanilla, vanilla.replace(seed=1)]),
        Method("BatchEnsemble, M = 4", [vanilla.replace(model="batch-ensemble")]),
        Method("Packed-Ensembles, M = 4, alpha = 2", [recipe("aggregated-learning", **independent)], True),
        Method(f"MC dropout, {MEMBERS} samples", [vanilla.replace(model="mc-dropout")]),
    ]


def row(method: Method, store: Store, device: torch.device) -> dict[str, Any] | None:
    """Scores of the last epoch, parameters, and the time of an image; None while a run is missing."""
    runs = [store.find(recipe, {"logits-last.safetensors"}) for recipe in method.recipes]
    found = [run for run in runs if run is not None]
    if len(found) < len(runs):
        return None
    logits, labels = zip(*[run.read_logits("last") for run in found], strict=True)
    logits_MNK = torch.cat(logits)
    if method.probabilities:
        logits_MNK = mean_probabilities(logits_MNK)[None]
    scores = evaluate(logits_MNK, labels[0]).ensemble
    facts = FACTS[method.recipes[0].dataset]
    nets = [recipe.network(facts.classes, recipe.seen(facts.size)).to(device).eval() for recipe in method.recipes]
    return {
        "method": method.label,
        "runs": [run.path.name for run in found],
        **{name: getattr(scores, name) for name in ("top1", "nll", "nllc", "ece")},
        "parameters": sum(map(parameters, nets)),
        "milliseconds_per_image": sum(milliseconds(net, facts.size, device) for net in nets),
        "training_minutes": sum(run.read_scores()["seconds"] for run in found) / 60,
    }


@torch.no_grad()
def milliseconds(net: Ensemble, size: tuple[int, int, int], device: torch.device) -> float:
    """Milliseconds per image in float32, of the fastest of ten batches; the weights make no difference."""
    images = torch.randn(500 if device.type == "cuda" else 20, *size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    times = []
    for _ in range(12):
        began = time.perf_counter()
        net(images).sum().item()  # waits for the device
        times.append(time.perf_counter() - began)
    return 1000 * min(times[2:]) / len(images)


SCORES = {"top1": (2, 100), "nll": (3, 1), "nllc": (3, 1), "ece": (3, 1)}  # digits and factor of each column


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Methods at equal cost."""
    lines = [["method", "Top1 %", "NLL", "NLLc", "ECE", "parameters (M)", "ms per image", "training minutes"]]
    for each in rows:
        scores = [spread([each[name]], *shown) for name, shown in SCORES.items()]
        costs = [f"{each['parameters'] / 1e6:.2f}", f"{each['milliseconds_per_image']:.4f}"]
        lines.append([each["method"], *scores, *costs, f"{each['training_minutes']:.1f}"])
    return lines


def main() -> None:
    into = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    into.add_argument("--data", type=Path, help="folder of the data sets")
    into.add_argument("--out", type=Path, required=True, help="folder of the runs and of others.json")
    into.add_argument("--smoke", action="store_true", help="2 epochs on the digits: shows that it works, nothing else")
    into.add_argument("--device", default="auto")
    into.add_argument("--compile", action=argparse.BooleanOptionalAction, help="by default on a GPU only")
    given = into.parse_args()
    runtime = Runtime(device=given.device, data=given.data, compile=given.compile, quiet=True)
    rows, store = methods(given.smoke), Store(given.out)
    needed = dict.fromkeys(recipe for method in rows for recipe in method.recipes)
    try:
        failures = run_here([recipe for recipe in needed if store.find(recipe) is None], store, runtime)
    except Stopped as stopped:
        raise SystemExit(str(stopped)) from None
    found = [made for method in rows if (made := row(method, Store(given.out), runtime.resolve())) is not None]
    with atomic_write(given.out / "others.json") as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n")
    for cells in table(found):
        print(f"| {' | '.join(cells)} |")
    if failures:
        raise SystemExit(f"{len(failures)} runs failed")


if __name__ == "__main__":
    main()
