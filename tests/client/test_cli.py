"""Does ``sandboxctl`` end as it must, write what it must, and nothing else?"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess

import pytest

from sandboxd.cli import exec_options
from sandboxd.client import AdminClient, Client
from tests.client.living import Place

pytestmark = pytest.mark.kernel

STATUSES = [  # arguments, exit status, standard output, what standard error says
    (["run", "true"], 0, b"", b""),
    (["run", "shell", "-a", "script=echo a; echo b >&2; exit 7"], 7, b"a\n", b"b\n"),
    (["run", "shell", "-a", "script=kill -9 $$"], 137, b"", b"SIGKILL has ended it"),
    (["run", "shell", "-a", "script=sleep 99", "--timeout", "200ms"], 124, b"", b"time was over"),
    (["run", "nonsense"], 127, b"", b"cannot run 'nonsense'"),
    (["run", "nonsense"], 127, b"", b"`sandboxctl commands` lists"),
    (["run", "limits.memory"], 127, b"", b"cannot run 'limits.memory'"),
    (["--json", "exec", "-p", "shell", "--", "true"], 64, b'{"fault"', b"--status-fd"),
    (["run", "true", "-a", "x=1"], 126, b"", b"cannot"),
    (["run", "cat", "-a", "paths=/etc/passwd", "-w", "."], 126, b"", b"absolute"),
    (["run", "cat", "-a", "paths=x"], 126, b"", b"send the directory to work in"),
    (["run", "ask", "-a", "text=x"], 75, b"", b"waits for approval"),
    (["run", "true", "-w", "/nonexistent"], 64, b"", b"cannot open the workspace"),
    (["run", "true", "--timeout", "5"], 64, b"", b"cannot read duration"),
    (["run", "true", "-a", "novalue"], 64, b"", b"write KEY=VALUE"),
    (["run"], 64, b"", b"cannot understand the command line"),
    (["nonsense"], 64, b"", b"cannot understand the command line"),
    ([], 64, b"", b"cannot understand the command line"),
    (["show", "run_none"], 125, b"", b"cannot"),
    (["execute", "prop_none"], 125, b"", b"cannot"),
    (["check", "true"], 0, b"allow by ", b""),
    (["check", "ask", "-a", "text=x"], 75, b"ask by ", b""),
    (["check", "nonsense"], 127, b"deny by ", b"cannot run 'nonsense'"),
    (["check", "true", "-a", "x=1"], 126, b"deny by ", b"cannot"),
    (["exec", "--profile", "shell", "--", "true"], 0, b"", b""),
    (["exec", "-p", "shell", "--", "sh", "-c", "echo x; exit 3"], 3, b"x\n", b""),
    (["exec", "--profile=shell", "--timeout=200ms", "--", "sleep", "99"], 124, b"", b"time"),
    (["exec", "--profile", "shell", "--", "/nonexistent"], 127, b"", b"/nonexistent"),
    (["exec", "--profile", "nonsense", "--", "true"], 127, b"", b"cannot run 'nonsense'"),
    (["exec", "--profile", "cat", "--", "true"], 64, b"", b"profiles that do: sh, shell"),
    (["exec", "--profile", "shell"], 64, b"", b"usage: sandboxctl exec"),
    (["exec", "--", "true"], 64, b"", b"usage: sandboxctl exec"),
    (["exec", "--profile", "shell", "--nonsense", "--", "true"], 64, b"", b"--nonsense"),
    (["exec", "--profile", "shell", "--status-fd", "99", "--", "true"], 64, b"", b"descriptor"),
    (["exec", "--help"], 0, b"usage: sandboxctl exec", b""),
    (["exec", "-p", "shell", "--help"], 0, b"usage: sandboxctl exec", b""),
    (["exec", "-p", "cat", "-w", ".", "--", "true"], 64, b"", b"profiles that do: sh, shell"),
    (["exec", "-psh", "-w.", "--", "true"], 0, b"", b""),
    (
        ["exec", "-p", "shell", "--memory=64MiB", "--pids", "9", "--output=1KiB", "--", "true"],
        0,
        b"",
        b"",
    ),
    (["exec", "-p", "shell", "--memory", "64", "--", "true"], 64, b"", b"cannot read size"),
    (["exec", "-p", "shell", "--pids", "x", "--", "true"], 64, b"", b"--pids takes a number"),
    (["exec", "-p", "shell", "--memory", "999TiB", "--", "true"], 126, b"", b"narrow --memory"),
    (["run", "true", "--timeout", "999h"], 126, b"", b"cannot narrow --timeout"),
    (["show", "x"], 125, b"", b"write the whole id"),
    (["show", f"run_{32 * '0'}"], 125, b"", f"cannot find run run_{32 * '0'}".encode()),
    (["kill", f"run_{32 * '0'}"], 125, b"", f"cannot find run run_{32 * '0'}".encode()),
    (["approve", f"prop_{32 * '0'}"], 125, b"", f"cannot find proposal prop_{32 * '0'}".encode()),
    (["--help"], 0, b"usage: sandboxctl", b""),
    (["version"], 0, b"sandboxctl 0", b""),
    (["commands"], 0, b"ask ", b""),
    (["profile", "list"], 0, b"ask ", b""),
    (["reload"], 0, b"18 profiles", b""),
]


@pytest.mark.parametrize(("arguments", "status", "out", "err"), STATUSES)
def test_it_ends_and_says_as_the_table_tells(
    living: Place, arguments: list[str], status: int, out: bytes, err: bytes
) -> None:
    done = living.ctl(*arguments)
    assert done.returncode == status, done
    assert done.stdout.startswith(out) if out else done.stdout == b"", done
    assert err in done.stderr if err else done.stderr == b"", done
    assert b"Traceback" not in done.stderr


JSON: list[tuple[list[str], str, object]] = [
    (["run", "true"], "status", "exited"),
    (["--json", "run", "nonsense"], "status", "denied"),
    (["check", "true"], "decision", "allow"),
    (["propose", "true"], "state", "ready"),
    (["propose", "nonsense"], "state", "denied"),
    (["version"], "version", "0.1.0"),
    (["show", "run_none"], "fault", None),
    (["status"], "mode", None),
    (["commands"], "commands", None),
    (["pending"], "proposals", None),
    (["runs", "--limit", "1"], "runs", None),
    (["ps"], "runs", []),
    (["reload"], "profiles", 18),
]


@pytest.mark.parametrize(("arguments", "member", "value"), JSON)
def test_json_is_one_object_of_ascii(
    living: Place, arguments: list[str], member: str, value: object
) -> None:
    done = living.ctl(*arguments, "--json")
    assert done.stdout.isascii()
    assert done.stdout.count(b"\n") == 1
    found = json.loads(done.stdout)
    assert member in found
    assert value is None or found[member] == value


def test_a_fault_as_json_has_a_name_and_says_whether_to_try_again(living: Place) -> None:
    fault = json.loads(living.ctl("--json", "show", "run_none").stdout)["fault"]
    assert fault["name"] == "NotFound"
    assert fault["retryable"] is False
    assert fault["message"].startswith("cannot ")


@pytest.mark.parametrize(
    ("arguments", "member"),
    [
        (["run", "shell", "-a", "script=echo x"], "status"),
        (["exec", "-p", "shell", "--", "echo", "x"], "status"),
        (["execute", "prop_none"], "fault"),
    ],
)
def test_the_record_goes_to_the_status_descriptor(
    living: Place, arguments: list[str], member: str
) -> None:
    reader, writer = os.pipe()
    verb, *others = arguments
    done = living.ctl(verb, "--status-fd", str(writer), *others, pass_fds=(writer,))
    os.close(writer)
    with open(reader, "rb") as pipe:
        record = json.loads(pipe.read())
    assert member in record
    assert done.stdout == (b"x\n" if member == "status" else b"")


def test_exec_passes_words_as_they_are(living: Place) -> None:
    words = ["a b", "$HOME", "'\"", "*", "", "\n", "é", "-e", ";true"]
    done = living.ctl("exec", "-p", "shell", "--", "printf", "<%s>", *words)
    assert done.stdout.decode() == "".join(f"<{word}>" for word in words)


def test_exec_passes_bytes_as_they_are(living: Place) -> None:
    data = bytes(range(256)) * 4
    done = living.ctl("exec", "-p", "shell", "-i", "--", "head", "-c", "1024", input=data)
    assert done.stdout == data


def test_exec_gives_no_input_unless_asked(living: Place) -> None:
    done = living.ctl("exec", "-p", "shell", "--", "cat", input=b"secret")
    assert (done.returncode, done.stdout) == (0, b"")


def test_exec_works_in_the_current_directory(living: Place) -> None:
    done = living.ctl("exec", "-p", "sh", "--", "pwd")
    assert done.stdout.decode().strip() == living.workspace


def test_input_much_longer_than_a_pipe_arrives_while_output_comes(living: Place) -> None:
    data = b"x" * 199 + b"\n"
    script = 'count=0; while read -r line; do count=$((count+1)); done; echo "$count"'
    done = living.ctl("exec", "-p", "shell", "-i", "--", "bash", "-c", script, input=data * 5000)
    assert done.stdout == b"5000\n"


@pytest.mark.parametrize("verb", [["exec", "-p", "shell", "--"], ["run", "--stream", "shell"]])
def test_output_comes_as_it_is_printed(living: Place, verb: list[str]) -> None:
    script = "echo first; while [ ! -e go ]; do sleep 0.01; done; echo second"
    words = ["bash", "-c", script] if verb[0] == "exec" else ["-a", f"script={script}"]
    # The profile "sh" has a workspace, where the test lets the command go on.
    verb = [word.replace("shell", "sh") for word in verb]
    place = [] if verb[0] == "exec" else ["-w", "."]
    running = living.popen(*verb, *words, *place)
    assert running.stdout is not None
    assert running.stdout.readline() == b"first\n"
    go = os.path.join(living.workspace, "go")
    with open(go, "w", encoding="ascii"):
        pass
    out, err = running.communicate(timeout=30)
    os.unlink(go)
    assert (out, err, running.returncode) == (b"second\n", b"", 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_exec_passes_signals_on(living: Place, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.01; done"
    running = living.popen("exec", "-p", "shell", "--", "bash", "-c", script)
    assert running.stdout is not None
    assert running.stdout.readline() == b"ready\n"
    running.send_signal(number)
    out, err = running.communicate(timeout=30)
    assert (out, running.returncode) == (f"got {name}\n".encode(), 9)
    assert b"sandboxctl" not in err  # bash itself may tell what became of sleep


def test_a_signal_that_was_ignored_stays_ignored(living: Place) -> None:
    script = "echo ready; read -r line; echo done"
    running = living.popen(
        "exec", "-p", "shell", "-i", "--", "bash", "-c", script,
        stdin=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline() == b"ready\n"
    running.send_signal(signal.SIGHUP)
    out, _ = running.communicate(b"\n", timeout=30)
    assert (out, running.returncode) == (b"done\n", 0)


def test_a_reader_that_goes_away_ends_the_run(living: Place) -> None:
    script = "while echo x; do sleep 0.01; done"
    running = living.popen("exec", "-p", "shell", "--", "bash", "-c", script)
    assert running.stdout is not None
    assert running.stdout.readline() == b"x\n"
    running.stdout.close()
    assert running.wait(30) == 141
    assert running.stderr is not None
    assert running.stderr.read() == b""
    running.stderr.close()
    with AdminClient(living.endpoints.admin_socket) as admin:
        while admin.runs(active=True):
            pass  # each question is a round trip
        assert admin.runs(limit=1)[0].status == "cancelled"


def test_an_interrupt_ends_a_plain_run(living: Place) -> None:
    running = living.popen("run", "--stream", "shell", "-a", "script=echo ready; sleep 1000")
    assert running.stdout is not None
    assert running.stdout.readline() == b"ready\n"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (130, b"")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "shell", "-a", "script=seq 100000"],
        ["run", "--stream", "shell", "-a", "script=seq 100000"],
        ["exec", "-p", "shell", "--", "seq", "100000"],
    ],
)
def test_what_was_dropped_is_told_and_the_end_is_shown(
    living: Place, arguments: list[str]
) -> None:
    done = living.ctl(*arguments)
    whole = "".join(f"{n}\n" for n in range(1, 100001)).encode()
    match = re.fullmatch(
        rb"sandboxctl: cannot show all of stdout: (\d+) bytes were dropped\n", done.stderr
    )
    assert match is not None, done.stderr
    head, seam, tail = done.stdout.partition(b"\n[... " + match[1] + b" bytes not shown ...]\n")
    assert seam, "what follows is not what was printed next, and nothing says so"
    assert len(head) + int(match[1]) + len(tail) == len(whole)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert done.stdout.startswith(b"1\n2\n")
    assert done.stdout.endswith(b"\n99999\n100000\n")


def on_a_terminal(place: Place, *arguments: str) -> bytes:
    """Run ``sandboxctl`` with all standard streams on a terminal and return what it shows."""
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        place.argv(*arguments),
        env=os.environ | place.environment(),
        cwd=place.workspace,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 1 << 16)
        except OSError:  # EIO: nobody has the terminal open any more
            break
    os.close(ours)
    running.wait(30)
    return shown.replace(b"\r\n", b"\n")


@pytest.mark.parametrize("stream", ["", ">&2"])
@pytest.mark.parametrize("how", [[], ["--stream"]])
def test_a_terminal_is_shown_no_control_characters(
    living: Place, stream: str, how: list[str]
) -> None:
    script = rf"printf '\033]0;title\007 \r\033[2K \u202e\t\xff ok\n' {stream}"
    shown = on_a_terminal(living, "run", *how, "shell", "-a", f"script={script}")
    assert shown == b"\\u{1b}]0;title\\u{7} \\u{d}\\u{1b}[2K \\u{202e}\t\\xff ok\n"


def test_a_pipe_gets_the_bytes_themselves(living: Place) -> None:
    done = living.ctl("run", "shell", "-a", r"script=printf '\033]0;t\007\r\xff'")
    assert done.stdout == b"\033]0;t\007\r\xff"


def test_an_approver_sees_an_agents_texts_escaped(living: Place) -> None:
    with Client(living.endpoints.agent_socket) as client:
        evil = "x\r\x1b[2K\u202e\u200b\U000e0100 ls -la"
        proposal = client.propose("ask", text="plain", reason=evil)
    shown = living.ctl("pending").stdout.decode()
    assert shown.isascii()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", shown)
    assert "\\u{202e}" in shown or "\\u202e" in shown
    assert proposal.digest in shown
    rejected = living.ctl("reject", proposal.id[:20], "-m", "no")
    assert (rejected.returncode, rejected.stderr) == (0, b"")
    assert rejected.stdout == f"{proposal.id} rejected\n".encode()
    done = living.ctl("wait", proposal.id)
    assert (done.returncode, done.stdout) == (126, f"{proposal.id} rejected\n".encode())
    assert b"the approver says 'no'" in done.stderr


def test_propose_approve_and_execute_from_the_command_line(living: Place) -> None:
    made = living.ctl("propose", "ask", "-a", "text=hello", "--json")
    assert made.returncode == 75
    proposal = json.loads(made.stdout)["id"]
    assert living.ctl("wait", proposal, "--timeout", "1ms").returncode == 75
    assert living.ctl("approve", proposal[:20]).stdout == f"{proposal} ready\n".encode()
    assert living.ctl("wait", proposal).returncode == 0
    done = living.ctl("execute", proposal)
    assert (done.returncode, done.stdout) == (0, b"hello")
    again = living.ctl("execute", proposal)
    assert again.returncode == 125
    told = f"sandboxctl: cannot execute proposal {proposal}: it is used\n"
    assert again.stderr == told.encode()


def test_show_tells_of_a_run_what_it_was(living: Place) -> None:
    record = json.loads(living.ctl("run", "true", "--json").stdout)
    shown = living.ctl("show", record["id"].removeprefix("run_")[:16]).stdout.decode()
    for fact in (record["id"], record["digest"], "exited, exit status 0", "seccomp", "watchdog"):
        assert fact in shown
    assert "limits hit" not in shown


def test_show_tells_which_limit_was_hit(living: Place) -> None:
    script = "script=while :; do :; done"
    done = living.ctl("run", "shell", "-a", script, "--timeout", "200ms", "--json")
    shown = living.ctl("show", json.loads(done.stdout)["id"]).stdout.decode()
    assert re.search(r"^limits hit: +wall$", shown, re.MULTILINE)
    assert "timed_out (wall), exit status 124" in shown


def test_runs_tells_how_each_ended_on_one_line(living: Place) -> None:
    script = f"script=# {200 * 'x'}\nexit 3"
    living.ctl("run", "shell", "-a", "script=kill -9 $$")
    living.ctl("run", "shell", "-a", script)
    latest, before = living.ctl("runs", "--limit", "2").stdout.decode().splitlines()
    assert " exited 3 " in latest
    assert latest.endswith("xxx ...")
    assert len(latest) < 250
    assert " signaled SIGKILL " in before


def test_help_lists_exec_and_exec_its_options(living: Place) -> None:
    assert re.search(rb"^ +exec +run a command line", living.ctl("--help").stdout, re.MULTILINE)
    shown = living.ctl("exec", "--help").stdout.decode()
    for option in exec_options.SETTERS:
        assert re.search(rf"^  .*{option}\b", shown, re.MULTILINE)
    assert "without it the current directory" in shown


def test_kill_ends_a_run(living: Place) -> None:
    running = living.popen("run", "--stream", "shell", "-a", "script=echo ready; sleep 1000")
    assert running.stdout is not None
    running.stdout.readline()
    (active,) = json.loads(living.ctl("ps", "--json").stdout)["runs"]
    shown = living.ctl("show", active["id"]).stdout.decode()
    assert re.search(r"^status: +running$", shown, re.MULTILINE)
    assert not re.search("exit status|-1 ms|bytes", shown)
    assert living.ctl("kill", active["id"][:16]).stdout == f"{active['id']} killed\n".encode()
    _, err = running.communicate(timeout=30)
    assert b"it was cancelled" in err


def test_a_full_disk_is_a_fault_and_not_a_traceback(living: Place) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            living.argv("commands"),
            env=os.environ | living.environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 125
    assert done.stderr == b"sandboxctl: cannot write: No space left on device\n"


def test_serve_is_the_daemon_in_the_foreground(place: Place) -> None:
    running = place.popen("serve")
    assert running.stderr is not None
    events = []
    for line in running.stderr:
        events.append(json.loads(line)["event"])
        if events[-1] == "serving":
            break
    assert place.pid() == running.pid
    second = place.ctl("serve")
    assert second.returncode == 3
    told, logged = second.stderr.splitlines()
    assert told.startswith(
        f"sandboxctl: cannot serve here: a daemon runs already, pid {running.pid};".encode()
    )
    assert json.loads(logged)["event"] == "cannot_start"
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=30)
    assert running.returncode == 0
