"""Do the parts without sockets keep their promises: gate, turnstile, store, descriptions?"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.records import from_plain, parse, to_plain
from sandboxd.admin import Admin
from sandboxd.agent import Agent
from sandboxd.clock import Lifetime, now_ms
from sandboxd.connection import BadFrame
from sandboxd.endpoints import Endpoints, shipped_profiles
from sandboxd.errors import FAULTS, NotFound, Unavailable
from sandboxd.gate import Mode, Risk, decide
from sandboxd.proposals import Proposals
from sandboxd.protocol import Proposal, Request, Run
from sandboxd.settings import Settings, own_paths
from sandboxd.store import Grant, Store
from sandboxd.turnstile import Turnstile
from sandboxd.varlink import FaultInterface, decode_call

TRUTH: list[tuple[Mode, Risk, str, str]] = [
    ("deny", "low", "none", "deny"),
    ("deny", "high", "allowlist", "deny"),
    ("ask", "low", "none", "ask"),
    ("ask", "high", "loopback", "ask"),
    ("allow", "low", "none", "allow"),
    ("allow", "high", "allowlist", "allow"),
    ("allow_safe", "low", "none", "allow"),
    ("allow_safe", "medium", "none", "ask"),
    ("allow_safe", "high", "none", "ask"),
    ("allow_safe", "low", "loopback", "ask"),
    ("allow_safe", "low", "allowlist", "ask"),
]


@pytest.mark.parametrize(("mode", "risk", "network", "decision"), TRUTH)
def test_the_gate_is_its_truth_table(mode: Mode, risk: Risk, network: str, decision: str) -> None:
    found = decide(mode=mode, risk=risk, network=network)
    assert found.decision == decision
    assert mode in found.rule


def test_places_go_round_the_uids_in_turn() -> None:
    order: list[int] = []

    async def call(turnstile: Turnstile, uid: int) -> None:
        await turnstile.enter(uid, "x", 99)
        order.append(uid)
        await asyncio.sleep(0)
        turnstile.leave("x")

    async def scenario() -> None:
        turnstile = Turnstile(places=1, queued_per_uid=9, queued=99)
        await turnstile.enter(0, "x", 99)
        greedy = [asyncio.ensure_future(call(turnstile, 1)) for _ in range(8)]
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(call(turnstile, uid)) for uid in (2, 3)]
        await asyncio.sleep(0)
        turnstile.leave("x")
        await asyncio.gather(*greedy, *others)

    asyncio.run(scenario())
    assert order == [1, 2, 3, 1, 1, 1, 1, 1, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.booleans()), max_size=30))
def test_no_place_is_lost_whoever_gives_up(calls: list[tuple[int, str, bool]]) -> None:
    async def call(turnstile: Turnstile, inside: list[str], uid: int, command: str) -> None:
        await turnstile.enter(uid, command, 1)
        inside.append(command)
        assert len(inside) <= 2
        assert inside.count(command) == 1
        try:
            await asyncio.sleep(0)
        finally:
            inside.remove(command)
            turnstile.leave(command)

    async def scenario() -> None:
        turnstile = Turnstile(places=2, queued_per_uid=30, queued=30)
        inside: list[str] = []
        tasks = []
        for uid, command, gives_up in calls:
            tasks.append(asyncio.ensure_future(call(turnstile, inside, uid, command)))
            await asyncio.sleep(0)
            if gives_up:
                tasks[len(tasks) // 2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for command in "ab":  # both places are free again
            await asyncio.wait_for(turnstile.enter(9, command, 1), 5)

    asyncio.run(scenario())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    one = Store(str(tmp_path), boot="b", kept_proposals=10, kept_runs=5)
    yield one
    one.close()


def a_proposal(number: int, uid: int = 1) -> Proposal:
    return Proposal(id=f"prop_{number}", command="x", state="ready", digest="d", uid=uid)


def a_grant(proposal: Proposal, expires_at: int) -> Grant:
    return Grant(
        id=f"grant_{proposal.id}",
        proposal=proposal.id,
        digest=proposal.digest,
        source="test",
        created_at=0,
        expires_at=expires_at,
    )


def test_a_grant_is_used_once_in_time_and_for_its_digest(store: Store) -> None:
    proposal, late = a_proposal(1), a_proposal(2)
    store.add_proposal(proposal, a_grant(proposal, 1000), None)
    store.add_proposal(late, a_grant(late, 1000), None)
    run = Run(id="run_1", command="x", status="running", proposal=proposal.id, uid=1)
    used = dataclasses.replace(proposal, state="used")
    other = dataclasses.replace(used, digest="e")
    assert not store.claim(other, run, now=1, durable=True)
    assert not store.claim(dataclasses.replace(late, state="used"), run, now=1000, durable=True)
    assert store.run("run_1") is None
    assert store.proposal(proposal.id) == proposal
    assert store.claim(used, run, now=1, durable=True)
    assert not store.claim(used, run, now=1, durable=True)
    assert store.run("run_1") == run
    store.give_back(proposal, "run_1")
    assert store.run("run_1") is None
    assert store.claim(used, run, now=1, durable=False)


def test_the_claim_waits_for_the_disk(tmp_path: Path) -> None:
    """``synchronous=FULL`` (2) while the grant is used up, NORMAL (1) otherwise."""
    store = Store(str(tmp_path), boot="b", kept_proposals=10, kept_runs=5)
    proposal = a_proposal(1)
    store.add_proposal(proposal, a_grant(proposal, 1000), None)
    levels = []
    for durable in (False, True):
        with store._db.transaction(durable=durable):
            levels += store._db.select("PRAGMA synchronous")
    assert levels == [(1,), (2,)]
    store.close()


def test_old_records_are_forgotten_but_not_what_is_open(store: Store) -> None:
    opened = a_proposal(0)
    store.add_proposal(opened, a_grant(opened, 1), None)
    for number in range(1, 31):
        ended = dataclasses.replace(a_proposal(number), state="denied")
        store.add_proposal(ended, None, None)
        store.put_run(Run(id=f"run_{number}", command="x", status="denied", uid=1))
    store.add_proposal(dataclasses.replace(a_proposal(99, uid=2), state="denied"), None, None)
    assert store.proposal("prop_0") == opened
    assert [number for number in range(1, 31) if store.proposal(f"prop_{number}")] == [
        *range(21, 31)
    ]
    assert [run.id for run in store.runs(99, active=False)] == [
        f"run_{n}" for n in range(30, 25, -1)
    ]


def test_state_of_a_later_version_is_refused(tmp_path: Path) -> None:
    Store(str(tmp_path), boot="b", kept_proposals=1, kept_runs=1).close()
    with sqlite3.connect(tmp_path / "state.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    os.chmod(tmp_path / "state.db", 0o600)  # the daemon's umask sees to that
    with pytest.raises(Unavailable, match="version 99"):
        Store(str(tmp_path), boot="b", kept_proposals=1, kept_runs=1)


def test_another_uids_proposal_is_as_good_as_none(store: Store) -> None:
    proposals = Proposals(store, None, pending_per_uid=1, open_per_uid=1)  # type: ignore[arg-type]  # no policy is asked
    store.add_proposal(a_proposal(1, uid=1), None, None)
    assert proposals.get(1, "prop_1").id == "prop_1"
    texts = []
    for uid, proposal in ((2, "prop_1"), (2, "prop_none")):
        with pytest.raises(NotFound) as caught:
            proposals.get(uid, proposal)
        texts.append(str(caught.value))
    assert len(set(texts)) == 1


def test_a_lifetime_ends_by_the_nearer_clock() -> None:
    lifetime = Lifetime.of(60_000)
    assert 0 < lifetime.left_s <= 60
    day_ms = 86_400_000
    assert dataclasses.replace(lifetime, expires_at=now_ms() - day_ms).left_s < 0
    set_back = dataclasses.replace(lifetime, expires_at=lifetime.expires_at + day_ms)
    assert set_back.left_s <= 60


MEMBER = r"(?:[a-z_]+: [\[\]?A-Za-z_, ()]+?)"
LINE = re.compile(
    rf"interface [a-z.A-Z]+|#.*|type [A-Z]\w* \(.*\)|error [A-Z]\w* \(.*\)"
    rf"|method [A-Z]\w*\((?:{MEMBER}(?:, )?)*\) -> \((?:{MEMBER}(?:, )?)*\)|"
)


@pytest.mark.parametrize("interface", [Agent, Admin, FaultInterface])
def test_descriptions_are_varlinks_and_complete(
    interface: type[Agent | Admin | FaultInterface],
) -> None:
    text = interface.render_interface_description()
    assert all(LINE.fullmatch(line) for line in text.splitlines())
    declared = re.findall(r"^(?:type|method|error) (\w+)", text, re.MULTILINE)
    assert len(declared) == len(set(declared))
    used = set(re.findall(r": [\[\]?]*(?:\[string\])?([A-Z]\w*)", text))
    assert used <= set(declared)
    if interface is FaultInterface:
        assert set(declared) == set(FAULTS)
    else:
        assert re.search(rf"^interface {re.escape(interface.name)}$", text, re.MULTILINE)


@given(st.binary(max_size=200))
def test_the_decoder_takes_any_bytes(data: bytes) -> None:
    with contextlib.suppress(BadFrame):  # no other error is one of its answers
        assert decode_call(data).method_name


@given(st.builds(Request, command=st.text(max_size=9), reason=st.text(max_size=9)))
def test_requests_come_back_as_they_were(request: Request) -> None:
    assert from_plain(Request, to_plain(request), "") == request
    assert parse("{}") == {}


def test_no_sandbox_may_see_what_is_the_daemons(tmp_path: Path) -> None:
    places = {name: str(tmp_path / name) for name in ("run", "state", "profiles")}
    for path in places.values():
        os.mkdir(path)
    link = str(tmp_path / "link")
    os.symlink(places["state"], link)
    endpoints = Endpoints(
        runtime_dir=places["run"],
        state_dir=link,
        profile_dirs=(shipped_profiles(), places["profiles"]),
    )
    ceiling = Settings().ceiling(endpoints)
    assert {*places.values(), "/proc", "/run", "/etc/shadow"} <= set(ceiling.denied)
    assert shipped_profiles() not in ceiling.denied
    assert set(own_paths(endpoints)) <= set(ceiling.denied)
    assert ceiling.devices == ()
    assert ceiling.sandboxes >= Settings().max_running
