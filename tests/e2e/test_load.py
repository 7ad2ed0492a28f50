"""Does the daemon's memory stay flat under many runs and endless output?"""

from __future__ import annotations

import asyncio
import os
import re

import pytest

from sandboxd import autostart
from sandboxd.aclient import AsyncClient
from sandboxd.client import Client
from tests.client.living import Place

pytestmark = pytest.mark.kernel

MIB = 1 << 20


def _resident_bytes(place: Place) -> int:
    with open(f"/proc/{place.pid()}/status", encoding="ascii") as file:
        found = re.search(r"VmRSS:\s+(\d+) kB", file.read())
    assert found is not None
    return int(found[1]) << 10


def _descriptors(place: Place) -> int:
    return len(os.listdir(f"/proc/{place.pid()}/fd"))


async def _many(place: Place, count: int, at_once: int) -> list[str]:
    gate = asyncio.Semaphore(at_once)

    async def one() -> str:
        async with gate, AsyncClient(place.endpoints.agent_socket) as client:
            return (await client.run("true")).status

    return list(await asyncio.gather(*(one() for _ in range(count))))


def test_two_hundred_runs_sixteen_at_once(place: Place) -> None:
    autostart.ensure_running(place.endpoints)
    asyncio.run(_many(place, 32, 16))
    before = _resident_bytes(place)
    statuses = asyncio.run(_many(place, 200, 16))
    assert statuses == ["exited"] * 200
    assert _resident_bytes(place) - before < 16 * MIB


def test_two_gibibytes_of_output(place: Place) -> None:
    autostart.ensure_running(place.endpoints)
    with Client(place.endpoints.agent_socket) as client:
        client.run("sh", script="head -c 1M /dev/zero", workspace=place.workspace)
        before = _resident_bytes(place)
        run = client.run("sh", script="head -c 2G /dev/zero", workspace=place.workspace)
    assert (run.status, run.exit_code) == ("exited", 0)
    assert run.stdout.total_bytes == 2 << 30
    assert run.stdout.dropped_bytes == (2 << 30) - len(run.stdout.bytes())
    assert _resident_bytes(place) - before < 16 * MIB
