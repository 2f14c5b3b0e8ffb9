"""Training speed of timm backbones: the engine with M = 1 and M = 2 beside a plain compiled loop.

    python benchmarks/backbones.py [--models resnet50 convnext_tiny] [--batch 128] [--seconds 2]

The plain loop is what a user would write: torch.compile, channels_last, autocast to bf16, fused AdamW, one batch that
lies on the device. The engine also crops, flips, normalises and mixes new images in every step. The network, the
optimiser and the batch size are the same. Rates are medians of five repeats, sustained for `--seconds` each.
"""

import argparse
import time
from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F

from mixmo.engine.benchmark import timed
from mixmo.engine.step_timer import StepTimer, random_dataset
from mixmo.recipes import named
from mixmo.recipes.protocols import Facts

MODELS = ("resnet50", "convnext_tiny", "vit_small_patch16_224")
SIZE, CLASSES = 224, 100


def plain(name: str, batch: int, device: torch.device) -> Callable[[], None]:
    """Return a step of a plain compiled loop."""
    model = timm.create_model(name, num_classes=CLASSES).train()
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.randn(batch, 3, SIZE, SIZE, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (batch,), device=device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(compiled(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def engine(name: str, batch: int, members: int, device: torch.device) -> Callable[[], None]:
    """Return a step of the engine, end to end."""
    method = "vanilla" if members == 1 else "cut-mixmo"
    recipe = named(f"finetune/{method}").replace(
        model=f"timm/{name}", pretrained=False, batch_size=batch, repetition=1, layer_decay=1.0, clip_grad=0.0
    )
    dataset = random_dataset("random", Facts(4 * batch, 2, (3, SIZE, SIZE), CLASSES), device)
    return StepTimer(recipe, dataset, device, compiled=device.type == "cuda").next_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    print("| model | plain compiled loop | engine, M = 1 | engine, M = 2 | M = 1 / plain | M = 2 / M = 1 |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in given.models:
        began, rates = time.perf_counter(), []
        for members in (None, 1, 2):
            torch._dynamo.reset()
            step = engine(name, given.batch, members, device) if members else plain(name, given.batch, device)
            for _ in range(6):  # compiles and records
                step()
            rates.append(given.batch / timed(step, device, given.seconds, 5).seconds)
            del step
            torch.cuda.empty_cache()
        shares = rates[1] / rates[0], rates[2] / rates[1]
        cells = [name, *(f"{rate:,.0f}" for rate in rates), *(f"{share:.3f}" for share in shares)]
        print(f"| {' | '.join(cells)} |", flush=True)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
