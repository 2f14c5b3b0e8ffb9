"""`mixmo serve` under load: many clients at a time, hostile requests among them, and a stop in the middle.

    python tests/faults/load.py [--clients 500] [--requests 1] [--hostile 300] [--seed 0]

The service is a process of its own on the loopback address. A good client sends images of its own, tries again while
the service is busy, and knows what the network predicts for each. Prints a table: fault, times tried, times survived.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from faults.hostile import BUSY, SAMPLES, SECRETS, Hostile, form, kinds

SECONDS = 15.0  # --max-seconds of the service
SLACK = 30.0  # for clients that share the cores with the service
Where = tuple[str, int]


@dataclass
class Tally:
    """What was tried, what survived, and a sentence for what did not."""

    tried: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    busy: Counter[int] = field(default_factory=Counter)  # statuses of answers that said to try again
    images: int = 0  # that were predicted for good clients

    def count(self, fault: str, failure: str | None = None) -> None:
        self.tried[fault] += 1
        if failure is not None:
            self.failed[fault] += 1
            self.failures.append(f"{fault}: {failure}")

    def table(self, command: str) -> str:
        lines = ["| fault | tried | survived | command |", "|---|---|---|---|"]
        for name, count in self.tried.items():
            lines.append(f"| {name} | {count} | {count - self.failed[name]} | `{command}` |")
        return "\n".join(lines)


async def exchange(where: Where, request: Hostile, seconds: float) -> list[tuple[int, bytes]]:
    """Send a request on a connection of its own; return all answers that come on it until it is closed."""
    reader, writer = await asyncio.open_connection(*where, limit=2**20)
    try:
        async with asyncio.timeout(seconds):
            sending = asyncio.ensure_future(_send(writer, request))
            try:
                if request.hang_up:
                    await sending
                    return []
                if not request.reads:
                    await sending
                    await asyncio.sleep(1.0)
                received = bytearray()
                with suppress(ConnectionError):
                    while part := await reader.read(2**16):
                        received += part
                return list(_answers(bytes(received)))
            finally:
                sending.cancel()
    finally:
        writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, request: Hostile) -> None:
    step = 1 if request.pause else 2**16
    with suppress(ConnectionError):
        for start in range(0, len(request.content), step):
            writer.write(request.content[start : start + step])
            await writer.drain()
            if request.pause:
                await asyncio.sleep(request.pause)


def _answers(received: bytes) -> Iterator[tuple[int, bytes]]:
    """Split what came on a connection into statuses and bodies."""
    while received:
        top, _, rest = received.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.1 (\d{3}) ", top)
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", top)
        assert status is not None, received[:200]
        assert length is not None or int(status[1]) in (100, 400), top
        count = int(length[1]) if length else 0 if status[1] == b"100" else len(rest)  # of broken HTTP: until the end
        assert len(rest) >= count, "the answer is cut short"
        if int(status[1]) >= 200:
            yield int(status[1]), rest[:count]
        received = rest[count:]


Expected = Sequence[tuple[bytes, str, float]]  # image file, label, probability


async def expect(where: Where, images: Sequence[bytes]) -> Expected:
    """Ask for each image alone, before the load."""
    expected = []
    for image in images:
        ((status, body),) = await exchange(where, Hostile(form([("alone", image)]), (200,)), 60.0)
        assert status == 200, body
        first = json.loads(body)["predictions"][0]
        expected.append((image, first["label"], first["probability"]))
    return expected


async def good_client(
    where: Where, name: str, expected: Expected, requests: int, draw: random.Random, tally: Tally, fault: str
) -> None:
    """Send images one after the other, each until it is predicted."""
    for place in range(requests):
        chosen = [draw.choice(expected) for _ in range(draw.choice((1, 1, 1, 3)))]
        own = f"{name}-{place}"
        request = Hostile(form([(f"{own}-{i}", image) for i, (image, _, _) in enumerate(chosen)]), (200,))
        failure = None
        while True:
            try:
                answers = await exchange(where, request, SECONDS + SLACK)
            except (OSError, TimeoutError, AssertionError) as error:
                failure = f"{type(error).__name__} {error}"
                break
            if len(answers) != 1:
                failure = f"{len(answers)} answers"
                break
            status, body = answers[0]
            if status not in BUSY:
                failure = _wrong(status, body, own, chosen)
                tally.images += len(chosen)
                break
            tally.busy[status] += 1
            await asyncio.sleep(draw.uniform(0.5, 1.5))
        tally.count(fault, failure)


def _wrong(status: int, body: bytes, own: str, chosen: Expected) -> str | None:
    if status != 200:
        return f"status {status}: {body[:200]!r}"
    got = [(row["name"], row["label"], row["probability"]) for row in json.loads(body)["predictions"]]
    for i, ((name, label, probability), (_, true_label, true_probability)) in enumerate(zip(got, chosen, strict=True)):
        if name != f"{own}-{i}" or label != true_label or abs(probability - true_probability) > 1e-3:
            return f"{own} got the answer of another request: {got}"
    return None


async def hostile_client(where: Where, kind: str, request: Hostile, tally: Tally, seconds: float) -> None:
    begun, failure = time.perf_counter(), None
    try:
        answers = await exchange(where, request, seconds + SLACK)
        late = time.perf_counter() - begun > seconds  # cut off while it was sending still, it may not have heard why
        failure = None if late and not answers else _tolerated(request, answers)
    except ConnectionError:
        pass  # closed by the service before all was sent
    except (OSError, TimeoutError, AssertionError) as error:
        failure = f"{type(error).__name__} {error} after {time.perf_counter() - begun:.0f} s"
    tally.count(kind, failure)


def _tolerated(request: Hostile, answers: list[tuple[int, bytes]]) -> str | None:
    for status, body in answers:
        if status not in (*request.statuses, *BUSY, 408):  # 408: large bodies of many clients take their time
            return f"status {status}: {body[:200]!r}"
        if any(secret in body for secret in SECRETS):
            return f"it gave away {body[:200]!r}"
    if not answers and 0 not in request.statuses:
        return "no answer"
    return None


async def crowd(
    where: Where,
    expected: Expected,
    clients: int,
    requests: int,
    draw: random.Random,
    tally: Tally,
    made: Mapping[str, Callable[[], Hostile]] | None = None,
    hostile: int = 0,
) -> None:
    """Let good clients call all at once, and so many hostile requests among them, at most 32 of those at a time."""
    names = [name for _ in range(hostile) for name in made or ()][:hostile]
    draw.shuffle(names)
    room = asyncio.Semaphore(32)

    async def attack(name: str) -> None:
        async with room:
            await hostile_client(where, name, made[name](), tally, SECONDS)

    fault = f"{clients} clients at a time" + (", hostile ones among them" if hostile else "")
    tasks = [good_client(where, f"c{i}", expected, requests, draw, tally, fault) for i in range(clients)]
    await asyncio.gather(*tasks, *map(attack, names))


async def stop_in_the_middle(
    service: "Service", expected: Expected, clients: int, draw: random.Random, tally: Tally
) -> None:
    """Send SIGTERM while requests are worked on: all of them are answered, and none is begun after it."""

    async def client(name: str) -> None:
        chosen = [draw.choice(expected) for _ in range(4)]
        request = Hostile(form([(f"{name}-{i}", image) for i, (image, _, _) in enumerate(chosen)]), (200,))
        failure = None
        try:
            answers = await exchange(service.where, request, 60.0)
            if len(answers) != 1:
                failure = f"{len(answers)} answers"
            elif answers[0][0] not in BUSY:
                failure = _wrong(*answers[0], name, chosen)
        except (OSError, TimeoutError, AssertionError) as error:
            failure = f"{type(error).__name__} {error}"
        tally.count("requests in work at a SIGTERM", failure)

    async def stop() -> None:
        await asyncio.sleep(1.0)
        service.process.send_signal(signal.SIGTERM)

    await asyncio.gather(stop(), *(client(f"s{i}") for i in range(clients)))
    begun = time.perf_counter()
    code = await asyncio.to_thread(service.process.wait, 60)
    took = time.perf_counter() - begun
    tally.count("a SIGTERM under load", None if code == 0 and took < 15 else f"exit status {code} after {took:.0f} s")


class Service:
    """`mixmo serve` as a process, and what its memory and its log have become."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process, self.log = process, list[str]()
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://" in line, line
        url = urlsplit(line.split()[-1])
        self.where: Where = (str(url.hostname), int(url.port or 0))
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log += self.process.stderr

    def status(self, name: str) -> int:
        """A number of /proc/PID/status, such as VmHWM in kB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+)", text, flags=re.MULTILINE)
        return int(found[1]) if found else 0

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    async def metric(self, name: str) -> float:
        request = Hostile(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", (200,))
        ((_, body),) = await exchange(self.where, request, 30.0)
        found = re.search(rf"^{name} (\S+)$", body.decode(), flags=re.MULTILINE)
        return float(found[1]) if found else 0.0


@contextmanager
def service(*arguments: str) -> Iterator[Service]:
    command = [sys.executable, "-m", "mixmo", "serve", *arguments, "--port", "0", "--max-seconds", str(SECONDS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield Service(process)
    finally:
        process.kill()
        process.wait()


async def run(made: Service, options: argparse.Namespace, tally: Tally) -> None:
    draw = random.Random(options.seed)
    expected = await expect(made.where, [path.read_bytes() for path in SAMPLES])
    requests = kinds(draw)
    files, before = made.files(), await made.metric("mixmo_images_total")
    print(f"memory at the start: {made.status('VmRSS') // 1024} MiB", flush=True)

    for hostile in (0, options.hostile):
        begun, busy = time.perf_counter(), tally.busy.total()
        await crowd(made.where, expected, options.clients, options.requests, draw, tally, requests, hostile)
        took, again = time.perf_counter() - begun, tally.busy.total() - busy
        print(f"{options.clients} clients, {hostile} hostile requests: {took:.0f} s, {again} answers said to try again")
        print(f"memory: {made.status('VmRSS') // 1024} MiB, at most {made.status('VmHWM') // 1024}", flush=True)
        if not hostile:  # then only these clients have asked
            more = await made.metric("mixmo_images_total") - before - tally.images
            failure = None if 0 <= more <= 3 * tally.busy[503] else f"{more:+.0f} images"
            tally.count("images predicted as often as answered", failure)
    most = made.status("VmHWM") / 2**20
    tally.count("memory, 4 GiB at most", None if most < 4 else f"{most:.1f} GiB")
    await asyncio.sleep(1.0)
    active, left = await made.metric("mixmo_requests_active"), made.files() - files
    tally.count("requests and files that stay open", None if active <= 1 and left <= 2 else f"{active}, {left}")
    await stop_in_the_middle(made, expected, 100, draw, tally)
    made.thread.join(10)
    traces = [line for line in made.log if "Traceback" in line or "failed" in line or "Exception" in line]
    tally.count("tracebacks in the log", None if not traces else "".join(made.log)[-2000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--requests", type=int, default=1, help="of each client, in each of two rounds")
    parser.add_argument("--hostile", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="to serve (default: the shipped network)")
    options = parser.parse_args()
    tally = Tally()
    with service(*([options.model] if options.model else [])) as made:
        asyncio.run(run(made, options, tally))
    given = f"--clients {options.clients} --hostile {options.hostile} --seed {options.seed}"
    print(tally.table(f"python tests/faults/load.py {given}"))
    for failure in tally.failures[:40]:
        print(failure)
    sys.exit(bool(tally.failures))


if __name__ == "__main__":
    main()
