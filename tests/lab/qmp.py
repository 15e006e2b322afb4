# SPDX-License-Identifier: LGPL-2.1-or-later
"""A client for QEMU's machine protocol (QMP)."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from typing_extensions import Self

from tests.lab.errors import LabError


class QmpError(LabError):
    """QEMU refused a command."""


class Qmp:
    """One connection. QEMU serves one client per socket; a second one gets no greeting."""

    def __init__(self, path: Path | str, timeout: float = 60) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(str(path))
            self._stream = self._socket.makefile("rb")
            # The greeting.
            self._receive()
            self.execute("qmp_capabilities")
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run a command and return its answer; events that arrive before the answer are passed
        over.
        """
        message = {
            "execute": command,
            "arguments": {name.replace("_", "-"): v for name, v in arguments.items()},
        }
        self._socket.sendall(json.dumps(message).encode() + b"\n")
        while True:
            answer = self._receive()
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise QmpError(f"{command}: {answer['error'].get('desc', answer['error'])}")

    def running(self) -> bool:
        """Return whether the guest's CPUs run."""
        return bool(self.execute("query-status")["running"])

    def dump(self, path: Path, *, paging: bool = False, dump_format: str = "elf") -> None:
        """Write the guest's memory to a file. The guest is paused meanwhile."""
        arguments: dict[str, Any] = {"paging": paging, "protocol": f"file:{path}"}
        if dump_format != "elf":
            arguments["format"] = dump_format
        self.execute("dump-guest-memory", **arguments)

    def _receive(self) -> dict[str, Any]:
        try:
            line = self._stream.readline()
        except TimeoutError:
            raise QmpError("QEMU does not answer") from None
        if not line:
            raise QmpError("QEMU closed the connection")
        message: dict[str, Any] = json.loads(line)
        return message
