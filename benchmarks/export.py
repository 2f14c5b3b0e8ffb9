"""What an exported ensemble costs over the export of a single network: bytes and time, side by side in one run.

    python benchmarks/export.py [--single exported] [--models wrn28_2] [--formats onnx pt2] [--batches 1 32]

The ensemble has two members, is folded, and gives all four outputs. The single network is an ordinary one (M = 1):
exported  by mixmo.export as well: the same four outputs, the same metadata
alike     its probabilities and nothing else, written as this package writes files: channels last, weights side by side,
          the graph compressed
torch     its probabilities and nothing else, as torch writes it

Both files run on one thread. They are called in turn, and each pair of calls gives one ratio: what slows the machine
for a while slows both. The processor's time is taken, so that other programs count little. Where weights lie in memory
moves a file's time by most of a per cent, so both are loaded many times: each load gives the median of its ratios, and
the table their mean with its standard error.
"""

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

import mixmo
from mixmo.exporters import onnx, pt2
from mixmo.exporters.export import export
from mixmo.exporters.file_metadata import INPUT

CLASSES, SIZE = 100, (3, 32, 32)


class Single(nn.Module):
    """An ordinary network: images to probabilities."""

    def __init__(self, net: mixmo.Network) -> None:
        super().__init__()
        self.encoder, self.core, self.head = net.encoders[0], net.core, net.heads[0]

    def forward(self, images: Tensor) -> Tensor:
        probabilities: Tensor = self.head(self.core(self.encoder(images))).softmax(-1)
        return probabilities


def export_ours(name: str, members: int, path: Path) -> None:
    net, names = mixmo.create(name, classes=CLASSES, members=members), [f"class {k}" for k in range(CLASSES)]
    export(net, path, size=SIZE, classes=names, temperature=1.2, mean=(0.5,) * 3, std=(0.25,) * 3)


def export_plain(name: str, path: Path, alike: bool) -> None:
    """Without the tracer's notes, as in ours."""
    net = Single(mixmo.create(name, classes=CLASSES, members=1)).eval()
    if alike:
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batch = torch.export.Dim("batch", min=1)
    with onnx.quiet():
        program = torch.export.export(net, (torch.rand(2, *SIZE),), dynamic_shapes=({0: batch},))
        if path.suffix == ".pt2":
            pt2.tidy(program)
            if alike:
                pt2.flatten(program)
            torch.export.save(program, path)
            if alike:
                pt2.compress(io.BytesIO(path.read_bytes()), path)
            return
        written = torch.onnx.export(program, input_names=[INPUT], output_names=["probs"], dynamo=True, verbose=False)
    assert written is not None  # as it is with dynamo
    model = written.model_proto
    onnx.tidy(model)
    path.write_bytes(model.SerializeToString())


def runner(path: Path, images: Tensor) -> Callable[[], object]:
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()

        def call() -> object:
            with torch.no_grad():
                return module(images)

        return call
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    pixels = images.numpy()
    return lambda: session.run(None, {INPUT: pixels})


def seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def pairs_of_calls(paths: Sequence[Path], images: Tensor, most: int, most_seconds: float) -> list[tuple[float, float]]:
    """Both files loaded anew and called in turn: the seconds of each pair of calls."""
    calls = [runner(path, images) for path in paths]
    for call in calls * 3:
        call()
    pairs: list[tuple[float, float]] = []
    ended = time.monotonic() + most_seconds
    while len(pairs) < most and time.monotonic() < ended:
        # In turn also within a pair: whoever comes second finds the processor warmer.
        first, second = calls if len(pairs) % 2 else calls[::-1]
        a, b = seconds(first), seconds(second)
        pairs.append((a, b) if len(pairs) % 2 else (b, a))
    return pairs


def compare(paths: Sequence[Path], batch: int, given: argparse.Namespace) -> str:
    """Milliseconds of both, and what the second takes more."""
    images, every, ratios = torch.randn(batch, *SIZE), [], []
    for _ in range(given.loads):
        pairs = pairs_of_calls(paths, images, given.pairs, given.most_seconds / given.loads)
        every += pairs
        ratios.append(statistics.median(b / a for a, b in pairs))
    single, both = (1000 * statistics.median(column) for column in zip(*every, strict=True))
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    more = f"{100 * (statistics.mean(ratios) - 1):+.2f} % ± {100 * error:.2f}"
    return f"{single:.2f} | {both:.2f} | {more} | {len(ratios)}, {len(every):,} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--single", nargs="+", choices=["exported", "alike", "torch"], default=["exported"])
    parser.add_argument("--models", nargs="+", default=["wrn28_2", "wrn28_10"])
    parser.add_argument("--formats", nargs="+", default=["onnx", "pt2"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--loads", type=int, default=20, help="times that both files are loaded, 2 or more")
    parser.add_argument("--pairs", type=int, default=150, help="of calls, for each load")
    parser.add_argument("--most-seconds", type=float, default=60.0, help="of calls, for each row")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| network | format | single | bytes, single | bytes, M = 2 | more ", end="")
    print("| batch | single ms | M = 2 ms | more | loads, pairs |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for model, suffix, kind in product(given.models, given.formats, given.single):
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{name}.{suffix}" for name in ("single", "ensemble")]
            torch.manual_seed(0)
            if kind == "exported":
                export_ours(model, 1, paths[0])
            else:
                export_plain(model, paths[0], alike=kind == "alike")
            export_ours(model, 2, paths[1])
            sizes = [path.stat().st_size for path in paths]
            more = f"{100 * (sizes[1] / sizes[0] - 1):+.2f} %"
            for batch in given.batches:
                row = f"| {model} | {suffix} | {kind} | {sizes[0]:,} | {sizes[1]:,} | {more} | {batch} |"
                print(row, compare(paths, batch, given), flush=True)


if __name__ == "__main__":
    main()
