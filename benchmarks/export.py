"""What an exported ensemble costs over the export of a single network: bytes and time, side by side in one run.

    python benchmarks/export.py [--models wrn28_2 wrn28_10] [--formats onnx pt2] [--batches 1 32] [--pairs 200]

The single network is an ordinary one (M = 1) that gives its probabilities and nothing else, without metadata, as torch
writes it; with --alike as this package writes .pt2 files: channels last, the graph compressed. The ensemble has two
members, is folded, and gives all four outputs. Both files run on one thread. They are called in turn, and each pair of
calls gives one ratio: what slows the machine for a while slows both. The processor's time is taken, so that other
programs count little; the first tenth of the pairs does not count.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import mixmo
from mixmo.export import export, onnx_, pt2
from mixmo.export.metadata import INPUT

CLASSES, SIZE = 100, (3, 32, 32)


class Single(nn.Module):
    def __init__(self, net: mixmo.Network) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        probabilities: Tensor = self.net.read(images[None])[0].softmax(-1)
        return probabilities


def export_single(name: str, path: Path, alike: bool) -> None:
    """The plain export of an ordinary network, without the tracer's notes, as in ours."""
    net = Single(mixmo.create(name, classes=CLASSES, members=1)).eval()
    if alike:
        net = net.to(memory_format=torch.channels_last)
    batch = torch.export.Dim("batch", min=1)
    with onnx_.quiet():
        program = torch.export.export(net, (torch.rand(2, *SIZE),), dynamic_shapes=({0: batch},))
        if path.suffix == ".pt2":
            pt2.tidy(program)
            torch.export.save(program, path)
            if alike:
                pt2.compress(path)
            return
        written = torch.onnx.export(program, input_names=[INPUT], output_names=["probs"], dynamo=True, verbose=False)
    model = written.model_proto
    onnx_.tidy(model)
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["wrn28_2", "wrn28_10"])
    parser.add_argument("--formats", nargs="+", default=["onnx", "pt2"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--most-seconds", type=float, default=60.0, help="for each row")
    parser.add_argument("--alike", action="store_true", help="the single .pt2 file as this package writes its own")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| network | format | size, single | size, M = 2 | more | batch | single ms | M = 2 ms | more | middle half |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model in given.models:
        for suffix in given.formats:
            with tempfile.TemporaryDirectory() as folder:
                single, ensemble = Path(folder) / f"single.{suffix}", Path(folder) / f"ensemble.{suffix}"
                torch.manual_seed(0)
                export_single(model, single, given.alike)
                names = [f"class {k}" for k in range(CLASSES)]
                statistics_ = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
                net = mixmo.create(model, classes=CLASSES, members=2)
                export(net, ensemble, size=SIZE, classes=names, temperature=1.2, **statistics_)
                sizes = [path.stat().st_size for path in (single, ensemble)]
                for batch in given.batches:
                    images = torch.randn(batch, *SIZE)
                    calls = [runner(path, images) for path in (single, ensemble)]
                    ended = time.monotonic() + given.most_seconds
                    pairs = []
                    while len(pairs) < given.pairs and time.monotonic() < ended:
                        # In turn also within a pair: whoever comes second finds the processor warmer.
                        first, second = calls if len(pairs) % 2 else calls[::-1]
                        a, b = seconds(first), seconds(second)
                        pairs.append((a, b) if len(pairs) % 2 else (b, a))
                    pairs = pairs[len(pairs) // 10 :]
                    alone, both = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
                    low, middle, high = statistics.quantiles([b / a for a, b in pairs], n=4)
                    print(
                        f"| {model} | {suffix} | {sizes[0]:,} | {sizes[1]:,} | {100 * (sizes[1] / sizes[0] - 1):.2f} % "
                        f"| {batch} | {alone:.2f} | {both:.2f} | {100 * (middle - 1):+.2f} % "
                        f"| {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} % ({len(pairs)} pairs) |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
