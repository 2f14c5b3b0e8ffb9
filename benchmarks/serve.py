"""Throughput and latency of `mixmo serve`: one client after the other, and 16 at a time.

    python benchmarks/serve.py [MODEL] [--clients 16] [--seconds 10] [--device cpu] [--rounds 3]

Starts the service in a process of its own and calls POST /predict over HTTP, each request with one image. Clients keep
their connection and send the next request after each response. Rounds alternate between one client and many, so that
both meet the same machine. What batching costs a single client is the time that its requests wait in the queue.
"""

import argparse
import http.client
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from mixmo import serve
from mixmo.hub.shipped import shipped

IMAGE = Path(serve.__file__).parent / "samples" / "coffee.jpg"
BOUNDARY = "mixmo-benchmark"


class Load(NamedTuple):
    """What some clients measured."""

    rate: float  # images/s
    milliseconds: list[float]  # of each request, sorted

    def quantile(self, share: float) -> float:
        return self.milliseconds[min(len(self.milliseconds) - 1, int(share * len(self.milliseconds)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=shipped()[0])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--image", type=Path, default=IMAGE)
    options = parser.parse_args()
    body = form(options.image.read_bytes())
    with service(options.model, "--device", options.device) as where:
        measure(where, body, 1, 1.0)  # caches and threads are warm then
        one, many, waits, ratios = [], [], [], []
        for _ in range(options.rounds):
            before = queued(where)
            one.append(measure(where, body, 1, options.seconds))
            after = queued(where)
            waits.append(1e3 * (after[0] - before[0]) / (after[1] - before[1]))
            many.append(measure(where, body, options.clients, options.seconds))
            ratios.append(many[-1].rate / one[-1].rate)
    print("| clients | images/s | p50 ms | p99 ms |\n|---|---|---|---|")
    for count, loads in ((1, one), (options.clients, many)):
        middle = sorted(loads, key=lambda load: load.rate)[len(loads) // 2]
        print(f"| {count} | {middle.rate:.1f} | {middle.quantile(0.5):.1f} | {middle.quantile(0.99):.1f} |")
    print(f"throughput of {options.clients} clients over one: {statistics.median(ratios):.2f} x")
    print(f"wait of a single client for batching: {statistics.median(waits):.3f} ms")


@contextmanager
def service(*arguments: str) -> Iterator[str]:
    """Run `mixmo serve` on a free port; yield host:port."""
    command = [sys.executable, "-m", "mixmo", "serve", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "http://" not in line:
            sys.exit("the service did not start")
        print(line.strip())
        try:
            yield urlsplit(line.split()[-1]).netloc
        finally:
            process.terminate()


def form(image: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="image"\r\n\r\n'
    return head.encode() + image + f"\r\n--{BOUNDARY}--\r\n".encode()


def measure(where: str, body: bytes, clients: int, seconds: float) -> Load:
    """Let so many clients call for so long."""
    times: list[float] = []
    begun = time.perf_counter()
    end = begun + seconds

    def client() -> None:
        connection = http.client.HTTPConnection(where)
        while time.perf_counter() < end:
            sent = time.perf_counter()
            connection.request("POST", "/predict", body, {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                raise RuntimeError(f"status {response.status}")
            times.append(1e3 * (time.perf_counter() - sent))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Load(len(times) / (time.perf_counter() - begun), sorted(times))


def queued(where: str) -> tuple[float, float]:
    """Return the seconds that all requests so far waited in the queue, and their number."""
    connection = http.client.HTTPConnection(where)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    found = [re.search(rf"^mixmo_wait_seconds_{name} (\S+)$", text, flags=re.MULTILINE) for name in ("sum", "count")]
    seconds, count = (float(match[1]) for match in found if match)
    return seconds, count


if __name__ == "__main__":
    main()
