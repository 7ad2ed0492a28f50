"""Does the daemon come up only where it is safe, from any process, and go without a trace?"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.daemon.harness import PATIENCE_S, TOP, Daemon, fault, frame
from tests.daemon.test_connections import until

MakeDaemon = Callable[..., Daemon]


def problem(log: list[dict[str, Any]]) -> str:
    (line,) = (line for line in log if line["event"] == "cannot_start")
    return str(line["problem"])


def refuses(daemon: Daemon, text: str, **options: Any) -> None:
    status, log = daemon.fails_to_start(**options)
    assert status == 1
    assert text in problem(log)


def test_a_second_daemon_leaves_the_first_alone(make_daemon: MakeDaemon) -> None:
    first = make_daemon().start()
    assert first.process is not None
    for runtime_dir in (first.runtime_dir, f"{first.runtime_dir}2"):
        second = make_daemon()
        second.runtime_dir = runtime_dir
        status, log = second.fails_to_start()
        assert status == 3
        assert f"pid {first.process.pid}" in problem(log)
    with first.agent() as agent:
        assert agent.ask("Run", command="echo")["status"] == "exited"


def test_what_stands_at_the_sockets_path_is_left_as_it_is(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    os.mkdir(daemon.runtime_dir, 0o700)
    target = os.path.join(daemon.directory, "victim")
    for make, remove in (
        (lambda path: open(path, "xb").close(), os.unlink),
        (lambda path: os.symlink(target, path), os.unlink),
        (os.mkdir, os.rmdir),
        (os.mkfifo, os.unlink),
    ):
        make(daemon.admin_path)
        before = os.lstat(daemon.admin_path)
        refuses(daemon, "something else stands there")
        assert os.lstat(daemon.admin_path) == before
        assert not os.path.exists(target)
        remove(daemon.admin_path)
    daemon.start()


def test_a_live_socket_is_left_and_a_dead_one_replaced(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    os.mkdir(daemon.runtime_dir, 0o700)
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(daemon.agent_path)
        alive.listen(8)
        refuses(daemon, "another process does")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_S)
            client.connect(daemon.agent_path)
    daemon.start()
    with daemon.agent() as agent:
        assert agent.ask("ListCommands")


@pytest.mark.parametrize("which", ["runtime_dir", "state_dir"])
def test_its_directories_are_its_own(make_daemon: MakeDaemon, which: str) -> None:
    daemon = make_daemon()
    path = getattr(daemon, which)
    os.mkdir(path)
    for mode in (0o755, 0o701, 0o770):
        os.chmod(path, mode)
        refuses(daemon, f"its mode is {mode:04o}")
    os.rmdir(path)
    os.symlink(daemon.workspace, path)
    refuses(daemon, "it is not a directory")
    os.unlink(path)
    with open(path, "xb"):
        pass
    refuses(daemon, path)


def test_the_state_file_is_its_own(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    daemon.stop()
    path = os.path.join(daemon.state_dir, "state.db")
    os.chmod(path, 0o644)
    refuses(daemon, "others may read or write it")
    os.chmod(path, 0o600)
    os.link(path, f"{path}.link")
    refuses(daemon, "not a regular file of this user alone")
    os.rename(path, os.path.join(daemon.directory, "elsewhere"))
    os.symlink(os.path.join(daemon.directory, "elsewhere"), path)
    refuses(daemon, "not a regular file of this user alone")
    os.unlink(path)
    os.unlink(f"{path}.link")
    with open(path, "xb") as file:
        file.write(b"not SQLite at all, whatever its name says" * 100)
    os.chmod(path, 0o600)
    refuses(daemon, "cannot keep the state")


def test_all_files_are_private_whatever_the_umask(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start(preexec_fn=lambda: os.umask(0))
    with daemon.agent() as agent:
        agent.ask("Run", command="echo")
        for directory in (daemon.runtime_dir, daemon.state_dir):
            assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
            names = os.listdir(directory)
            modes = {
                stat.S_IMODE(os.stat(os.path.join(directory, name)).st_mode) for name in names
            }
            assert (len(names) > 1, modes) == (True, {0o600})


def inherit_badly() -> None:
    """Become a process as careless launchers leave behind."""
    os.closerange(0, 3)
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())


def test_it_works_with_whatever_it_inherits(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    reader, writer = os.pipe()
    daemon.start(
        preexec_fn=inherit_badly, pass_fds=(reader, writer), env={"LD_LIBRARY_PATH": "/x"}
    )
    with daemon.agent() as agent:
        assert agent.ask("Run", command="echo")["stdout"]["data"] == "hello\n"
    assert f"pipe:[{os.fstat(reader).st_ino}]" not in daemon.descriptors()
    assert daemon.stop() == 0
    os.close(reader)
    os.close(writer)


def test_hangup_reloads_all_or_nothing(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    assert daemon.process is not None

    def events(name: str) -> int:
        return len([line for line in daemon.log() if line["event"] == name])

    os.unlink(os.path.join(daemon.profiles_dir, "echo.toml"))
    daemon.write_profile("broken", "name =")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: events("reload_refused") == 1)
    with daemon.agent() as agent:
        assert agent.ask("Run", command="echo")["status"] == "exited"
        os.unlink(os.path.join(daemon.profiles_dir, "broken.toml"))
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: events("reloaded") == 1)
        assert agent.ask("Run", command="echo")["status"] == "denied"


def test_it_ends_when_nobody_needs_it(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon("", "--idle-exit", "0.5").start()
    assert daemon.process is not None
    with daemon.agent() as agent:
        waiting = agent.ask("Propose", command="quick")["id"]
        assert agent.ask("WaitProposal", proposal=waiting)["state"] == "expired"
        assert daemon.process.poll() is None
    assert daemon.process.wait(PATIENCE_S) == 0
    assert not os.path.exists(daemon.agent_path)
    daemon.process = None


def run_detached(daemon: Daemon) -> subprocess.CompletedProcess[bytes]:
    """Start ``daemon`` in the background; returns when it serves or has failed."""
    return subprocess.run(
        [word for word in daemon.command() if word != "--foreground"],
        env=os.environ | {"PYTHONPATH": TOP},
        timeout=PATIENCE_S,
        check=False,
        stderr=subprocess.PIPE,
    )


def test_detached_it_serves_and_logs_to_its_own_file(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon("", "--idle-exit", "0.3")
    assert run_detached(daemon).returncode == 0
    with daemon.agent() as agent:  # it serves already
        assert agent.ask("Run", command="echo")["status"] == "exited"
        assert run_detached(daemon).returncode == 3
    until(lambda: not os.path.exists(daemon.agent_path))
    log_path = os.path.join(daemon.state_dir, "daemon.log")
    assert stat.S_IMODE(os.stat(log_path).st_mode) == 0o600
    with open(log_path, encoding="ascii") as file:
        assert "serving" in file.read()


def plant_fifo(_: str, path: str) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("plant", [os.symlink, plant_fifo])
def test_a_log_that_is_no_file_of_its_own_is_not_written_to(
    make_daemon: MakeDaemon, plant: Callable[[str, str], None]
) -> None:
    daemon = make_daemon()
    victim = os.path.join(daemon.directory, "victim")
    with open(victim, "xb"):
        pass
    os.mkdir(daemon.state_dir, 0o700)
    plant(victim, os.path.join(daemon.state_dir, "daemon.log"))
    assert run_detached(daemon).returncode == 1
    assert os.stat(victim).st_size == 0
    assert not os.path.exists(daemon.agent_path)


@contextlib.contextmanager
def passed_sockets(daemon: Daemon) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        for number, sock in enumerate(made):
            sock.bind(os.path.join(daemon.directory, f"passed{number}"))
            sock.listen(8)
        yield made


def activation(sockets: list[socket.socket], names: str, daemon: Daemon) -> list[str]:
    """Return a command that becomes the daemon with ``sockets`` as descriptors from 3 on."""
    moves = " ".join(f"{3 + n}<&{sock.fileno()}" for n, sock in enumerate(sockets))
    settings = f"LISTEN_PID=$$ LISTEN_FDS={len(sockets)} LISTEN_FDNAMES={names}"
    return ["/bin/bash", "-c", f'exec {moves}; {settings} exec "$@"', "sh", *daemon.command()]


def test_sockets_that_a_service_manager_holds_are_served(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    with passed_sockets(daemon) as sockets:
        command = activation(sockets, "admin:agent", daemon)
        daemon.command = lambda: command  # type: ignore[method-assign]  # one daemon's own
        daemon.admin_path, daemon.agent_path = (str(s.getsockname()) for s in sockets)
        daemon.start(pass_fds=[sock.fileno() for sock in sockets])
        with daemon.agent() as agent, daemon.admin() as admin:
            assert agent.ask("Run", command="echo")["status"] == "exited"
            assert admin.ask("Status")["profiles"] == 8
        assert sorted(os.listdir(daemon.runtime_dir)) == ["daemon.lock"]
        assert daemon.stop() == 0
        assert os.path.exists(daemon.agent_path)  # the manager's, not ours to remove


@pytest.mark.parametrize("names", ["admin:other", "agent:agent", "agent", ""])
def test_sockets_of_other_names_are_refused(make_daemon: MakeDaemon, names: str) -> None:
    daemon = make_daemon()
    with passed_sockets(daemon) as sockets:
        command = activation(sockets, names, daemon)
        daemon.command = lambda: command  # type: ignore[method-assign]  # one daemon's own
        refuses(daemon, "cannot use the sockets", pass_fds=[s.fileno() for s in sockets])


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("surprise = 1", "surprise"),
        ("runs = { max_running = 0 }", "runs.max_running"),
        ("runs = { max_running = -1 }", "runs.max_running"),
        ("runs = { max_running = 1.5 }", "runs.max_running"),
        ('runs = { max_running = "5" }', "runs.max_running"),
        ("runs = { max_running = true }", "runs.max_running"),
        ("runs = { max_running = 1000000000 }", "runs.max_running"),
        ("connections = { idle_s = inf }", "connections.idle_s"),
        ("connections = { idle_s = nan }", "connections.idle_s"),
        ("connections = { totl = 5 }", "connections.totl"),
        ('limits = { roots = ["relative"] }', "limits.roots"),
        ("runs = oops", "line 1"),
    ],
)
def test_wrong_settings_are_refused_by_name(
    make_daemon: MakeDaemon, text: str, where: str
) -> None:
    refuses(make_daemon(text), where)


def test_settings_that_others_can_write_are_refused(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon("")
    os.chmod(daemon.config, 0o666)
    refuses(daemon, "others than its owner may write it")
    os.chmod(daemon.config, 0o600)
    os.link(daemon.config, f"{daemon.config}.link")
    refuses(daemon, "not a regular file with one name")
    os.unlink(daemon.config)
    os.symlink(f"{daemon.config}.link", daemon.config)
    refuses(daemon, "cannot read settings")
    os.unlink(daemon.config)
    refuses(daemon, "cannot find settings")
    os.mkfifo(daemon.config)
    refuses(daemon, "not a regular file with one name")


def test_the_log_is_lines_of_printable_ascii(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    nasty = "a\nb\r\x85\u2028\x1b[31m\x07\x7f\u202e"
    with daemon.agent() as agent:
        agent.call("Propose", command=nasty, reason=nasty)
        agent.call("Run", command="echo", reason=nasty, arguments={"text": nasty})
        agent.send(frame(nasty))
        agent.receive()
    with open(daemon.log_path, "rb") as file:
        text = file.read()
    assert set(text) <= {0x0A, *range(0x20, 0x7F)}
    assert daemon.log()


def test_the_daemon_waits_without_work(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    assert daemon.process is not None
    with daemon.agent() as agent:
        assert fault(agent.call("GetRun", run="none")) == "NotFound"
        path = f"/proc/{daemon.process.pid}/status"

        def switches() -> int:
            with open(path, encoding="ascii") as file:
                (line,) = (each for each in file if each.startswith("voluntary_ctxt_switches"))
            return int(line.split()[1])

        before = switches()
        select.select([], [], [], 1.0)
        assert switches() - before < 5


def test_the_program_says_how_it_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sandboxd.daemon", "--help"],
        cwd=TOP,
        capture_output=True,
        check=True,
    )
    for option in (
        "--foreground",
        "--runtime-dir",
        "--state-dir",
        "--profiles",
        "--config",
        "--idle-exit",
    ):
        assert option.encode() in done.stdout
