"""A pseudoterminal for programs that draw on one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios

from hosts import Host, wait_for


class Terminal:
    """A pseudoterminal with a program running on it."""

    ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"

    def __init__(self, host: Host, *command, columns=120, rows=20):
        self.main, self.other = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.other)
        self.shown = b""
        # A new session with this as its controlling terminal.
        self.program = host.start(
            *command, stdin=self.other, stdout=self.other, stderr=self.other,
            preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
        )  # fmt: skip

    def resize(self, columns, rows):
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> bytes:
        """Everything written to the terminal so far."""
        while select.select([self.main], [], [], 0.02)[0]:
            self.shown += os.read(self.main, 65536)
        return self.shown

    def screen(self) -> str:
        """The text on the screen, from the escape sequences that move, clear and print."""
        cells, row, column = {}, 1, 1
        drawn = self.read().decode(errors="replace")
        for code, letter in re.findall(r"\x1b\[([?\d;]*[A-Za-z])|([^\x1b])", drawn):
            if code.endswith("H"):
                row, column = (int(part) for part in code[:-1].split(";"))
            elif code.endswith("J"):
                cells.clear()
            elif letter:
                cells[row, column] = letter
                column += 1
        rows = range(1, max((row for row, _ in cells), default=0) + 1)
        width = max((column for _, column in cells), default=0)
        return "\n".join("".join(cells.get((r, c), " ") for c in range(1, width + 1)) for r in rows)

    def shows(self, *parts: str):
        try:
            wait_for("the expected screen", lambda: all(part in self.screen() for part in parts))
        except AssertionError:
            raise AssertionError(f"expected {parts}, got\n{self.screen()}") from None

    def resize_and_redraw(self, columns, rows):
        drawn = len(self.read())
        self.resize(columns, rows)
        wait_for("a redraw", lambda: len(self.read()) > drawn)

    def type(self, keys: bytes):
        os.write(self.main, keys)

    def is_restored(self) -> bool:
        return termios.tcgetattr(self.other) == self.before

    def close(self):
        os.close(self.main)
        os.close(self.other)
