"""How does init start commands, signal them, reap whatever ends, and tell the truth about it?"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from launcher import channel, lockdown, paths, syscalls
from launcher.birth import Life
from launcher.lockdown import Attempt, StepFailed
from launcher.plan import Command, Exited, Failed, Forward, Start, Started
from launcher.records import Malformed

_OOM_SCORE_ADJ = b"1000"
_PF_FORKNOEXEC = 0x40  # <linux/sched.h>: "forked but didn't exec"


@dataclass(slots=True)
class Totals:
    """Resource usage of all processes that ended since the last report (getrusage(2))."""

    user_us: int = 0
    system_us: int = 0
    max_rss_bytes: int = 0
    ended: int = 0


class Commands:
    """The loop of a finished sandbox."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._channel = life.channel
        self._commands: dict[int, Command] = {}
        self._totals = Totals()
        self._wakeup_fd, wakeup_write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wakeup_write_fd, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Serve until the daemon closes the channel."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wakeup_fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._wakeup_fd in ready:
                os.read(self._wakeup_fd, 512)
                self._reap()
            if self._channel.fileno() in ready and not self._serve_one():
                return

    def _serve_one(self) -> bool:
        received = channel.receive(self._channel, Start, Forward)
        if received is None:
            return False
        message, fds = received
        if isinstance(message, Start):
            try:
                self._start(message.command, fds)
            finally:
                channel.close_all(fds)
            return True
        if fds:
            raise Malformed("", "descriptors where none belong")
        self._forward(message)
        return True

    def _start(self, command: Command, fds: list[int]) -> None:
        if len(fds) != 3:
            raise Malformed("", "three descriptors are needed")
        try:
            pid = self._launch(command, (fds[0], fds[1], fds[2]))
        except StepFailed as failed:
            message = Failed(
                sandbox=self._life.plan.sandbox,
                command=command.command,
                step=failed.step,
                errno=failed.errno,
                detail=failed.detail,
            )
            channel.send(self._channel, message)
            return
        self._commands[pid] = command
        self._offer_to_oom_killer(pid)
        channel.send(self._channel, Started(command=command.command, pid=pid))
        self._reap()

    def _offer_to_oom_killer(self, pid: int) -> None:
        """Let commands die before init, which is to tell of it (R15).

        Only now does the file belong to us. Where it does not (a program nobody may read), or the
        process has ended, the whole sandbox's own score holds.
        """
        with suppress(PermissionError, FileNotFoundError, ProcessLookupError):
            path, flags = f"{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC
            fd = os.open(path, flags, dir_fd=self._life.birth.proc_fd)
            try:
                os.write(fd, _OOM_SCORE_ADJ)
            finally:
                os.close(fd)

    def _launch(self, command: Command, stdio: tuple[int, int, int]) -> int:
        """Start ``command`` and return its pid once execveat(2) has taken place.

        Raises:
            StepFailed: it has not, and there is no such process any more.

        """
        executable_fd = self._open_executable(command)
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        attempt = Attempt(
            life=self._life,
            command=command,
            executable_fd=executable_fd,
            stdio=stdio,
            report_fd=write_fd,
        )
        pid, pidfd = syscalls.clone3(flags=0, exit_signal=signal.SIGCHLD)
        if pid == 0:
            _become(attempt)
        for fd in (write_fd, executable_fd, pidfd):
            os.close(fd)
        with open(read_fd, "rb") as report:
            said = report.read()
        if said:
            os.waitpid(pid, 0)
            raise StepFailed.decode(said)
        if self._has_not_executed(pid):
            os.waitpid(pid, 0)
            raise StepFailed("execveat", 0, "the process was killed before it executed")
        return pid

    def _open_executable(self, command: Command) -> int:
        """Open what stands at the paths inside, and find it to be what was approved. I5, X01."""
        wanted = [(command.script, command.script_identity)] if command.script else []
        wanted.append((command.executable, command.identity))
        fd = -1
        for path, identity in wanted:
            if fd >= 0:
                os.close(fd)
            try:
                fd = paths.open_path(self._life.birth.root_fd, path or "")
            except OSError as error:
                text = f"{path}: {os.strerror(error.errno or 0)}"
                raise StepFailed("open the executable", error.errno or 0, text) from None
            if paths.identity(fd) != identity:
                os.close(fd)
                raise StepFailed("open the executable", 0, f"{path} is another file")
        return fd

    def _has_not_executed(self, pid: int) -> bool:
        """Ask the kernel: end of file on the report pipe alone would not prove a start."""
        proc_fd = self._life.birth.proc_fd
        fd = os.open(f"{pid}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
        try:
            fields = os.read(fd, 4096).decode(errors="replace").rpartition(")")[2].split()
        finally:
            os.close(fd)
        return bool(int(fields[6]) & _PF_FORKNOEXEC)  # field 9 of proc_pid_stat(5)

    def _forward(self, message: Forward) -> None:
        for pid, command in self._commands.items():
            if command.command == message.command:
                with suppress(ProcessLookupError):
                    os.kill(-1 if message.everyone else -pid, message.signal)
                    if message.signal != signal.SIGSTOP:
                        os.kill(-1 if message.everyone else -pid, signal.SIGCONT)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._count(usage)
            command = self._commands.pop(pid, None)
            if command is not None:
                self._finish(command, status)

    def _count(self, usage: os.struct_rusage) -> None:  # type: ignore[name-defined]  # no stub
        totals = self._totals
        totals.user_us += int(usage.ru_utime * 1e6)
        totals.system_us += int(usage.ru_stime * 1e6)
        totals.max_rss_bytes = max(totals.max_rss_bytes, usage.ru_maxrss << 10)
        totals.ended += 1

    def _finish(self, command: Command, status: int) -> None:
        survivors = 0 if self._commands else self._end_survivors()
        totals, self._totals = self._totals, Totals()
        message = Exited(
            command=command.command,
            returncode=os.waitstatus_to_exitcode(status),
            core_dumped=os.WCOREDUMP(status),
            user_us=totals.user_us,
            system_us=totals.system_us,
            max_rss_bytes=totals.max_rss_bytes,
            survivors=survivors,
            usage=self._life.birth.leaf.usage(),
        )
        channel.send(self._channel, message)

    def _end_survivors(self) -> int:
        """SIGKILL all that is left inside and reap it; return how many there were. L02."""
        ended = self._totals.ended
        while True:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            try:
                _, _, usage = os.wait4(-1, 0)
            except ChildProcessError:
                return self._totals.ended - ended
            self._count(usage)


def _become(attempt: Attempt) -> NoReturn:
    """In the child: lock down and execute, or report the step and end. Y03."""
    try:
        lockdown.execute(attempt)
    except StepFailed as failed:
        os.write(attempt.report_fd, failed.encode())
    except BaseException as error:  # noqa: BLE001  # nothing may unwind into init's own frames
        os.write(attempt.report_fd, StepFailed("lock down", 0, repr(error)).encode())
    finally:
        os._exit(127)
