"""How does a command get its standard input from a client?

Through a pipe(7) made for it alone: the daemon gets the read end, the client writes as the command
reads. A terminal, socket or file of the caller never reaches a sandbox. Nothing here waits, so the
blocking and the asyncio client share it.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 1 << 16


class Feed:
    """The pipe and what is still to be written to it.

    ``source`` is bytes, or a descriptor that is copied until its end and not closed.
    """

    def __init__(self, source: bytes | int) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.write_fd, False)
        self._source_fd = source if isinstance(source, int) else None
        self._pending = memoryview(b"" if isinstance(source, int) else source)
        self._finish_if_done()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def reads_from(self) -> int | None:
        """The descriptor to wait on for input, while nothing is pending."""
        return None if self._pending or self.write_fd < 0 else self._source_fd

    @property
    def writes_to(self) -> int | None:
        """The descriptor to wait on for room, while something is pending."""
        return self.write_fd if self._pending and self.write_fd >= 0 else None

    def sent(self) -> None:
        """Close the read end here: the daemon has its own."""
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1

    def advance(self) -> None:
        """Do what the descriptor waited on allows: read once, or write once."""
        if self.reads_from is not None:
            self._fill(self.reads_from)
        elif self.writes_to is not None:
            self._drain(self.writes_to)

    def close(self) -> None:
        """Close both ends; the command reads end-of-file."""
        self.sent()
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def _fill(self, fd: int) -> None:
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # such as EIO from the terminal of a background job: there is no more
        self._pending = memoryview(data)
        if not data:
            self._source_fd = None
        self._finish_if_done()

    def _drain(self, fd: int) -> None:
        try:
            self._pending = self._pending[os.write(fd, self._pending) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the command has closed its standard input, as it may
            self._pending, self._source_fd = memoryview(b""), None
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not self._pending and self._source_fd is None and self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1
