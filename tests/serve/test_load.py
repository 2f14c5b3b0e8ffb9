"""Many clients at a time and every kind of hostile request, as `make load` sends them in larger numbers."""

import asyncio
import random
import time
from typing import Any

import httpx
import pytest

from faults import load
from faults.hostile import SAMPLES, kinds
from faults.load import Tally, crowd, expect, hostile_client
from mixmo.serve.backends import Backend
from mixmo.serve.settings import Limits

SECONDS = 2.0


def test_every_client_of_a_crowd_gets_its_own_answers(backend: Backend, serve: Any) -> None:
    tally = Tally()

    async def run(where: tuple[str, int]) -> None:
        expected = await expect(where, [path.read_bytes() for path in SAMPLES])
        await crowd(where, expected, 50, 2, random.Random(0), tally)

    with serve(backend, Limits(max_requests=30)) as client:
        before = images(client)
        asyncio.run(run((client.base_url.host, client.base_url.port)))
        until = time.monotonic() + 5  # a batch is counted after its responses are sent
        while (predicted := images(client) - before - len(SAMPLES)) < tally.images and time.monotonic() < until:
            time.sleep(0.05)
        assert predicted == tally.images  # none is predicted twice
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.tried.total() == 100


def images(client: httpx.Client) -> float:
    (line,) = [line for line in client.get("/metrics").text.splitlines() if line.startswith("mixmo_images_total")]
    return float(line.split()[1])


def test_every_hostile_request_gets_its_status_while_others_are_answered(
    backend: Backend, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "SECONDS", SECONDS)
    tally, made = Tally(), kinds(random.Random(0), scale=0.02)

    async def run(where: tuple[str, int]) -> None:
        expected = await expect(where, [path.read_bytes() for path in SAMPLES])
        attacks = [hostile_client(where, kind, make(), tally, SECONDS) for kind, make in made.items()]
        await asyncio.gather(*attacks, crowd(where, expected, 10, 2, random.Random(0), tally))

    with serve(backend, Limits(max_seconds=SECONDS, max_bytes=700_000), hosts=("127.0.0.1",)) as client:
        asyncio.run(run((client.base_url.host, client.base_url.port)))
        assert "mixmo_requests_active 1.0" in client.get("/metrics").text  # this one
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.tried.total() == len(made) + 20
