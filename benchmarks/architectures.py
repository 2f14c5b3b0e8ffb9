"""Which architectures `mixmo.wrap` takes: one of every family of timm, torchvision and pytorchcv's CIFAR networks.

    PYTHONPATH=src python benchmarks/architectures.py --out FILE [--onnx] [NAME ...]

Each is built with random weights and 10 classes, wrapped with two members, compared with what it was, trained for a
step with every kind of mask, folded and, with --onnx, exported and run by onnxruntime. One core, about an hour without
--onnx; what is done is kept in --kept, so that an interrupted command continues. NAMEs restrict it to these.
"""

import argparse
import contextlib
import importlib
import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from families import PYTORCHCV, TIMM, TORCHVISION
from torch import Tensor, nn

import mixmo
from mixmo.mixing.masks import MASKS

KINDS = (*MASKS, "linear", "sum")
CLASSES = 10
LIMIT = 900  # seconds for one architecture


class Architecture(NamedTuple):
    library: str
    family: str
    name: str
    options: dict[str, Any] = {}  # noqa: RUF012  of its constructor, such as a smaller image
    arguments: dict[str, Any] = {}  # noqa: RUF012  of wrap, where detection is not enough


def architectures() -> list[Architecture]:
    """The table's rows."""
    libraries = {"timm": TIMM, "torchvision": TORCHVISION, "pytorchcv": PYTORCHCV}
    return [Architecture(library, family, *row) for library, rows in libraries.items() for family, row in rows.items()]


def build(architecture: Architecture) -> nn.Module:
    """A fresh classifier of 10 classes."""
    model: nn.Module
    if architecture.library == "timm":
        import timm

        model = timm.create_model(architecture.name, num_classes=CLASSES, **architecture.options)
    elif architecture.library == "torchvision":
        models = importlib.import_module("torchvision.models")
        model = getattr(models, architecture.name)(num_classes=CLASSES, **architecture.options)
    else:
        providers = importlib.import_module("pytorchcv.model_provider")
        model = providers.get_model(architecture.name, **architecture.options)
    return model


def check(architecture: Architecture) -> dict[str, Any]:
    """One row: what was found, and whether all holds."""
    began = time.perf_counter()
    torch.manual_seed(0)
    model = draw_heads(build(architecture)).eval()
    net = wrapped(model, architecture)
    images = torch.randn(2, *net.size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        answer = answers(model(images))
        start = relative(net.each(images), answer)
    row = {
        **architecture._asdict(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "stems": net.stems,
        "heads": net.heads,
        "size": net.size,
        "stride": net.stride,
        "start": start,
    }
    del model
    row["masks"], row["idle"] = masks(net)
    net.eval()
    with torch.no_grad():
        one, two = net.each(images)
        row["apart"] = relative(two, one)
        try:
            row["fold"] = relative(mixmo.fold(net).each(images), net.each(images))
        except mixmo.UserError as error:
            row["fold"] = str(error)
    row["seconds"] = time.perf_counter() - began
    return row


def draw_heads(model: nn.Module) -> nn.Module:
    """Some libraries start their heads at zero, which would hide every difference."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and len(layer.weight) == CLASSES:
            nn.init.normal_(layer.weight, std=0.1)
    return model


def answers(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return ((a - b).abs().max() / b.abs().max()).item()


def masks(net: mixmo.Wrapped) -> tuple[list[str], list[str]]:
    """Kinds that a step of Adam was made with, with finite gradients; parameters that had no part in it."""
    net.train()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    images, labels, passed, idle = torch.randn(2, *net.size), torch.arange(2), [], []
    for kind in KINDS:
        mix = mixmo.Mixer(kind, p=1.0, stride=net.stride)(images, labels)
        optimizer.zero_grad()
        mixmo.loss(net(mix), mix).backward()
        trained = [(name, p.grad) for name, p in net.named_parameters() if p.requires_grad]
        idle = [name for name, grad in trained if grad is None]
        if all(grad is None or grad.isfinite().all() for _, grad in trained):
            passed.append(kind)
        optimizer.step()
    return passed, idle


def wrapped(model: nn.Module, architecture: Architecture) -> mixmo.Wrapped:
    """Found by images of 64 or 128 pixels where the model takes them and masks have room, else of its own size."""
    if "size" in architecture.arguments:
        return mixmo.wrap(model, members=2, **architecture.arguments)
    for size in ((3, 64, 64), (3, 128, 128), None):
        try:
            net = mixmo.wrap(model, members=2, size=size, **architecture.arguments)
        except mixmo.UserError:
            if size is None:
                raise
            continue
        if net.size[1] // net.stride >= 8:
            return net
    return net


def onnx(architecture: Architecture) -> dict[str, Any]:
    """The largest difference of the exported file's answers from PyTorch's."""
    torch.manual_seed(0)
    net = wrapped(build(architecture), architecture).eval()
    from mixmo.exporters.export import export

    with tempfile.TemporaryDirectory() as folder:
        return {"onnx": export(net, Path(folder) / "model.onnx").difference}


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def attempt(work: Callable[[Architecture], dict[str, Any]], architecture: Architecture, key: str) -> dict[str, Any]:
    try:
        with limited(LIMIT):
            return work(architecture)
    except Exception as error:  # a foreign model's, or ours: it goes into the table
        return {key: f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--onnx", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("runs/architectures.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.kept.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = json.loads(given.kept.read_text()) if given.kept.exists() else {}
    listed = [a for a in architectures() if not given.names or a.name in given.names]
    for work, key, wanted in ((check, "error", True), (onnx, "onnx", given.onnx)):
        for architecture in listed if wanted else []:
            name = f"{architecture.library} {architecture.name}"
            row = rows.get(name, {})
            if (key == "error" and row) or (key == "onnx" and (key in row or "error" in row)):
                continue
            rows[name] = architecture._asdict() | row | attempt(work, architecture, key)
            print(json.dumps({k: v for k, v in rows[name].items() if k not in ("library", "options")}), flush=True)
            given.kept.write_text(json.dumps(rows, indent=1))
    if given.out:
        kept = [rows[f"{a.library} {a.name}"] for a in listed if f"{a.library} {a.name}" in rows]
        given.out.write_text(table(kept))


def table(rows: list[dict[str, Any]]) -> str:
    """The table of docs/results/architectures.md, and a line that counts its rows."""
    good = [row for row in rows if works(row)]
    automatic = sum(not row["arguments"] for row in good)
    exported = sum(isinstance(row.get("onnx"), float) for row in rows)
    share = 100 * automatic / max(1, len(rows))
    lines = [
        "| library | family | model | found | stem, head | stride | start | masks | differ | fold | ONNX |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *map(line, rows),
        "",
        f"{len(good)} of {len(rows)} work, {automatic} of them ({share:.1f} % of all) with stem and head "
        f"found automatically; {exported} exported. Masks: {', '.join(KINDS)}.",
    ]
    return "\n".join(lines) + "\n"


def works(row: dict[str, Any]) -> bool:
    return "error" not in row and len(row["masks"]) == len(KINDS) and row["start"] <= 1e-5 and row["apart"] > 1e-6


def line(row: dict[str, Any]) -> str:
    cells = [row["library"], row["family"], f"`{row['name']}`"]
    if "error" in row:
        return f"| {' | '.join(cells)} | no: {row['error'].replace('|', '/')} | | | | | | | |"
    named = ", ".join(f"{key}={value!r}" for key, value in row["arguments"].items())
    cells.append(f"with `{named}`" if named else "automatic")
    cells.append(f"`{', '.join(row['stems'])}`; `{', '.join(row['heads'])}`")
    cells += [str(row["stride"]), f"{row['start']:.0e}", f"{len(row['masks'])}/{len(KINDS)}", f"{row['apart']:.0e}"]
    cells.append(f"{row['fold']:.0e}" if isinstance(row["fold"], float) else "rejected")
    exported = row.get("onnx", "")
    cells.append(f"{exported:.0e}" if isinstance(exported, float) else "rejected" if exported else "")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
