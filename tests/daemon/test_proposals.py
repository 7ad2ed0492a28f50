"""Can anything run that was not proposed, judged and, where asked for, approved, once?"""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.daemon.harness import PROFILES, Daemon, Wire, fault, frame
from tests.daemon.test_connections import until


@pytest.fixture
def workspace(daemon: Daemon) -> Iterator[int]:
    for name in os.listdir(daemon.workspace):
        os.unlink(os.path.join(daemon.workspace, name))
    with daemon.workspace_fd() as fd:
        yield fd


def runs_of(daemon: Daemon) -> int:
    """Count what "ask" has done: one file a run."""
    return len(os.listdir(daemon.workspace))


def propose(agent: Wire, workspace: int, **parameters: Any) -> str:
    proposal = agent.ask("Propose", workspace, command="ask", workspace=0, **parameters)
    assert proposal["state"] == "pending"
    return str(proposal["id"])


def test_an_approved_proposal_is_executed_once(
    daemon: Daemon, agent: Wire, admin: Wire, workspace: int
) -> None:
    proposal = propose(agent, workspace, reason="need a file")
    (shown,) = admin.ask("Pending")
    assert (shown["id"], shown["reason"]) == (proposal, "need a file")
    assert agent.ask("Execute", proposal=proposal)["status"] == "pending"
    assert runs_of(daemon) == 0
    assert admin.ask("Approve", proposal=proposal)["state"] == "ready"
    assert admin.ask("Pending") == []
    run = agent.ask("Execute", proposal=proposal)
    assert (run["status"], run["exit_code"], run["proposal"]) == ("exited", 0, proposal)
    assert run["grant"].startswith("grant_")
    assert run["digest"] == shown["digest"]
    assert runs_of(daemon) == 1
    assert agent.ask("GetRun", run=run["id"]) == run
    assert agent.ask("GetProposal", proposal=proposal)["state"] == "used"
    with daemon.agent() as another:
        for wire in (agent, another):
            assert fault(wire.call("Execute", proposal=proposal)) == "Conflict"
    assert runs_of(daemon) == 1


def test_a_used_proposal_stays_used_after_a_restart(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon().start()
    with daemon.agent() as agent, daemon.admin() as admin, daemon.workspace_fd() as fd:
        used, ready, pending = (propose(agent, fd) for _ in range(3))
        for proposal in (used, ready):
            admin.ask("Approve", proposal=proposal)
        agent.ask("Execute", proposal=used)
    daemon.stop()
    daemon.start()
    with daemon.agent() as agent, daemon.admin() as admin:
        assert fault(agent.call("Execute", proposal=used)) == "Conflict"
        assert fault(admin.call("Approve", proposal=pending)) == "Conflict"
        for proposal in (ready, pending):
            assert agent.ask("Execute", proposal=proposal)["status"] == "expired"
    assert runs_of(daemon) == 1


def test_of_many_executions_at_once_one_takes_place(
    daemon: Daemon, agent: Wire, admin: Wire, workspace: int
) -> None:
    wires = [daemon.agent() for _ in range(50)]
    with concurrent.futures.ThreadPoolExecutor(len(wires)) as pool:
        for number in range(1, 11):
            proposal = propose(agent, workspace)
            admin.ask("Approve", proposal=proposal)
            replies = pool.map(
                lambda wire, it: wire.call("Execute", proposal=it), wires, [proposal] * 50
            )
            outcomes = [fault(reply) for reply in replies]
            assert sorted(outcomes) == [""] + ["Conflict"] * 49
            assert runs_of(daemon) == number
    for wire in wires:
        wire.sock.close()


@pytest.mark.parametrize(
    ("proposal", "error"),
    [
        ("prop_00000000000000000000000000000000", "NotFound"),
        ("", "NotFound"),
        ("../x", "NotFound"),
        ("' OR 1=1 --", "NotFound"),
        ("x" * 10_240, "NotFound"),
        ("\0", "NotFound"),
        (None, "InvalidParameter"),
        (7, "InvalidParameter"),
        (["prop"], "InvalidParameter"),
    ],
)
def test_what_was_never_proposed_is_not_executed(agent: Wire, proposal: Any, error: str) -> None:
    for method in ("Execute", "GetProposal", "CancelProposal", "WaitProposal"):
        assert fault(agent.call(method, proposal=proposal)) == error


SMUGGLED = ["argv", "arguments", "command", "cwd", "digest", "environment", "limits", "profile",
            "timeout", "workspace"]  # fmt: skip


@pytest.mark.parametrize("name", SMUGGLED)
def test_execute_takes_nothing_beside_the_proposal(
    daemon: Daemon, agent: Wire, admin: Wire, workspace: int, name: str
) -> None:
    proposal = propose(agent, workspace)
    admin.ask("Approve", proposal=proposal)
    reply = agent.call("Execute", proposal=proposal, more=False, **{name: 0})
    assert (fault(reply), reply["parameters"]) == ("InvalidParameter", {"parameter": name})
    assert runs_of(daemon) == 0


def test_agents_cannot_approve(agent: Wire) -> None:
    for method in ("Approve", "Reject", "Reload", "Kill"):
        assert fault(agent.call(f"io.sandboxd.Admin.{method}")) == "InterfaceNotFound"
        assert fault(agent.call(f"io.sandboxd.Agent.{method}")) == "MethodNotFound"


def test_refused_commands_have_no_way_to_run(agent: Wire, admin: Wire) -> None:
    for command, reason in (("never", "DENIED_BY_PROFILE"), ("nothing", "NOT_IN_ALLOWLIST")):
        proposal = agent.ask("Propose", command=command)
        assert (proposal["state"], proposal["denials"][0]["reason"]) == ("denied", reason)
        assert fault(admin.call("Approve", proposal=proposal["id"])) == "Conflict"
        assert agent.ask("Execute", proposal=proposal["id"])["status"] == "denied"
        run = agent.ask("Run", command=command)
        assert (run["status"], run["denials"][0]["reason"]) == ("denied", reason)
        assert agent.ask("GetRun", run=run["id"]) == run


def test_check_says_what_would_happen_and_keeps_nothing(agent: Wire, admin: Wire) -> None:
    decisions = {
        name: agent.ask("Check", command=name)["decision"]
        for name in ("echo", "quick", "never", "nothing")
    }
    assert decisions == {"echo": "allow", "quick": "ask", "never": "deny", "nothing": "deny"}
    assert admin.ask("Pending") == []


def test_waiting_ends_with_the_decision_and_with_the_timeout(
    agent: Wire, admin: Wire, workspace: int
) -> None:
    proposal = propose(agent, workspace)
    assert agent.ask("WaitProposal", proposal=proposal, timeout_ms=1)["state"] == "pending"
    agent.send(frame("WaitProposal", proposal=proposal))
    rejected = admin.ask("Reject", proposal=proposal, message="not today")
    assert (agent.receive() or {})["parameters"]["proposal"] == rejected
    run = agent.ask("Execute", proposal=proposal)
    assert (run["status"], run["denials"][0]["reason"]) == ("rejected", "REJECTED")
    assert "not today" in run["denials"][0]["message"]


def test_what_has_ended_is_not_decided_again(
    daemon: Daemon, agent: Wire, admin: Wire, workspace: int
) -> None:
    used, cancelled, rejected, ready = (propose(agent, workspace) for _ in range(4))
    admin.ask("Approve", proposal=used)
    agent.ask("Execute", proposal=used)
    agent.ask("CancelProposal", proposal=cancelled)
    admin.ask("Reject", proposal=rejected, message="")
    admin.ask("Approve", proposal=ready)
    for proposal in (used, cancelled, rejected, ready):
        reply = admin.call("Approve", proposal=proposal)
        assert fault(reply) == "Conflict"
        assert agent.ask("GetProposal", proposal=proposal)["state"] in str(reply["parameters"])
        assert fault(admin.call("Reject", proposal=proposal, message="")) == "Conflict"
    assert fault(agent.call("Execute", proposal=cancelled)) == "Conflict"
    assert fault(agent.call("CancelProposal", proposal=cancelled)) == "Conflict"
    assert runs_of(daemon) == 1


def test_time_ends_a_pending_and_a_ready_proposal(agent: Wire, admin: Wire) -> None:
    pending = agent.ask("Propose", command="quick")["id"]
    ready = agent.ask("Propose", command="quick")["id"]
    admin.ask("Approve", proposal=ready)
    assert agent.ask("WaitProposal", proposal=pending)["state"] == "expired"
    until(lambda: agent.ask("GetProposal", proposal=ready)["state"] == "expired")
    assert fault(admin.call("Approve", proposal=pending)) == "Conflict"
    for proposal in (pending, ready):
        run = agent.ask("Execute", proposal=proposal)
        assert (run["status"], run["denials"][0]["reason"]) == ("expired", "GRANT_EXPIRED")


def test_a_launch_that_fails_gives_the_grant_back(agent: Wire, admin: Wire) -> None:
    proposal = agent.ask("Propose", command="broken")["id"]
    admin.ask("Approve", proposal=proposal)
    for _ in range(2):
        reply = agent.call("Execute", proposal=proposal)
        assert fault(reply) == "SetupFailed"
        assert reply["parameters"]["layer"] == "test"
        assert agent.ask("GetProposal", proposal=proposal)["state"] == "ready"
    assert not [run for run in admin.ask("Runs", limit=500) if run["proposal"] == proposal]


def test_open_proposals_have_a_limit_and_others_go_on(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(
        "proposals = { pending_per_uid = 3, open_per_uid = 5, kept_per_uid = 10 }"
    ).start()
    with daemon.agent() as agent, daemon.admin() as admin, daemon.workspace_fd() as fd:
        assert agent.ask("ListCommands")
        assert admin.ask("Pending") == []
        before = daemon.descriptors()
        first = [propose(agent, fd) for _ in range(3)]
        assert fault(agent.call("Propose", fd, command="ask", workspace=0)) == "Unavailable"
        ready = [agent.ask("Propose", command="echo") for _ in range(2)]
        assert fault(agent.call("Propose", command="echo")) == "Unavailable"
        for proposal in (*first, *(each["id"] for each in ready)):
            agent.ask("CancelProposal", proposal=proposal)
        assert daemon.descriptors() == before
        for _ in range(20):
            assert agent.ask("Propose", command="never")["state"] == "denied"
        assert fault(agent.call("GetProposal", proposal=first[0])) == "NotFound"  # forgotten
        assert propose(agent, fd)
        assert len(admin.ask("Pending")) == 1


def test_ids_cannot_be_guessed(agent: Wire) -> None:
    ids = [agent.ask("Run", command="never")["id"] for _ in range(100)]
    ids += [agent.ask("Propose", command="never")["id"] for _ in range(100)]
    assert len(set(ids)) == 200
    tails = [each.partition("_")[2] for each in ids]
    assert all(len(bytes.fromhex(tail)) == 16 for tail in tails)
    assert len({tail[:4] for tail in tails}) > 150


def test_a_key_stands_for_one_request(agent: Wire, admin: Wire, workspace: int) -> None:
    proposal = propose(agent, workspace, idempotency_key="k1")
    assert propose(agent, workspace, idempotency_key="k1") == proposal
    reply = agent.call(
        "Propose",
        workspace,
        command="ask",
        workspace=0,
        arguments={"suffix": "other"},
        idempotency_key="k1",
    )
    assert fault(reply) == "Conflict"
    admin.ask("Approve", proposal=proposal)
    run = agent.ask("Run", workspace, command="ask", workspace=0, idempotency_key="k1")
    assert run["status"] == "exited"
    again = agent.ask("Run", workspace, command="ask", workspace=0, idempotency_key="k1")
    assert again == run


def test_run_with_a_key_runs_once(agent: Wire) -> None:
    first = agent.ask("Run", command="echo", idempotency_key="k2")
    assert agent.ask("Run", command="echo", idempotency_key="k2") == first


@pytest.fixture
def tool() -> Iterator[str]:
    """A program of this user's, in a directory that nobody else can write to."""
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as directory:
        path = os.path.join(directory, "tool")
        shutil.copy("/usr/bin/mktemp", path)
        yield path


@pytest.fixture
def changing(make_daemon: Callable[..., Daemon], tool: str) -> Daemon:
    """A daemon whose command "tool" is a copy that a test may exchange."""
    daemon = make_daemon()
    text = PROFILES["ask"].replace('"ask"', '"tool"', 1)
    daemon.write_profile("tool", text.replace("/usr/bin/mktemp", tool))
    return daemon.start()


def approved(daemon: Daemon, agent: Wire) -> str:
    with daemon.workspace_fd() as fd, daemon.admin() as admin:
        proposal = agent.ask("Propose", fd, command="tool", workspace=0)["id"]
        admin.ask("Approve", proposal=proposal)
    return str(proposal)


def reload(daemon: Daemon) -> dict[str, Any]:
    with daemon.admin() as admin:
        return admin.call("Reload")


def loosened(text: str) -> str:
    return text + "\nlimits = { pids = 99 }\n"


def tightened(text: str) -> str:
    return text + "\nlimits = { pids = 2 }\n"


@pytest.mark.parametrize("change", [loosened, tightened])
def test_a_changed_profile_voids_what_was_approved(
    changing: Daemon, change: Callable[[str], str]
) -> None:
    path = os.path.join(changing.profiles_dir, "tool.toml")
    with open(path, encoding="ascii") as file:
        text = file.read()
    with changing.agent() as agent:
        proposal = approved(changing, agent)
        changing.write_profile("tool", change(text))
        assert fault(reload(changing)) == ""
        run = agent.ask("Execute", proposal=proposal)
        assert (run["status"], run["denials"][0]["reason"]) == ("denied", "POLICY_CHANGED")
        changing.write_profile("tool", text)
        assert fault(reload(changing)) == ""
        assert agent.ask("Execute", proposal=proposal)["status"] == "denied"  # void for good
    assert runs_of(changing) == 0


def test_a_profile_that_only_looks_newer_changes_nothing(changing: Daemon) -> None:
    with changing.agent() as agent:
        proposal = approved(changing, agent)
        os.utime(os.path.join(changing.profiles_dir, "tool.toml"))
        assert fault(reload(changing)) == ""
        assert agent.ask("Execute", proposal=proposal)["status"] == "exited"


def test_a_removed_command_does_not_run(changing: Daemon) -> None:
    with changing.agent() as agent:
        proposal = approved(changing, agent)
        os.unlink(os.path.join(changing.profiles_dir, "tool.toml"))
        assert fault(reload(changing)) == ""
        run = agent.ask("Execute", proposal=proposal)
        assert (run["status"], run["denials"][0]["reason"]) == ("denied", "NOT_IN_ALLOWLIST")
    assert runs_of(changing) == 0


def test_a_broken_profile_leaves_all_as_it_was(changing: Daemon) -> None:
    with changing.agent() as agent:
        proposal = approved(changing, agent)
        changing.write_profile("other", "name = 7")
        os.unlink(os.path.join(changing.profiles_dir, "echo.toml"))
        assert fault(reload(changing)) == "ProfileError"
        assert agent.ask("Run", command="echo")["status"] == "exited"
        assert agent.ask("Execute", proposal=proposal)["status"] == "exited"


def by_rename(tool: str) -> None:
    shutil.copy("/usr/bin/touch", f"{tool}.new")
    os.rename(f"{tool}.new", tool)


def by_writing(tool: str) -> None:
    shutil.copyfile("/usr/bin/touch", tool)


def by_link(tool: str) -> None:
    os.unlink(tool)
    os.symlink("/usr/bin/touch", tool)


def by_removal(tool: str) -> None:
    os.unlink(tool)


@pytest.mark.parametrize("exchange", [by_rename, by_writing, by_link, by_removal])
def test_an_exchanged_executable_does_not_run(
    changing: Daemon, tool: str, exchange: Callable[[str], None]
) -> None:
    with changing.agent() as agent:
        proposal = approved(changing, agent)
        exchange(tool)
        run = agent.ask("Execute", proposal=proposal)
        assert run["status"] == "denied"
        assert run["denials"][0]["reason"].startswith("EXECUTABLE_")
        assert agent.ask("Execute", proposal=proposal)["status"] == "denied"
    assert runs_of(changing) == 0


def test_an_exchanged_workspace_is_not_the_one_that_was_granted(
    daemon: Daemon, agent: Wire, admin: Wire, workspace: int
) -> None:
    proposal = propose(agent, workspace)
    admin.ask("Approve", proposal=proposal)
    aside = f"{daemon.workspace}.aside"
    os.rename(daemon.workspace, aside)
    os.mkdir(daemon.workspace)
    try:
        agent.ask("Execute", proposal=proposal)
        assert runs_of(daemon) == 0
    finally:
        os.rmdir(daemon.workspace)
        os.rename(aside, daemon.workspace)
