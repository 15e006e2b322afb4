# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes cpio archives in the "newc" format that the kernel unpacks as its first root file
system.
"""

from __future__ import annotations

import stat
from pathlib import PurePath, PurePosixPath
from typing import BinaryIO


class CpioWriter:
    """Writes entries to a stream.

    Inode numbers and default times are constants, so that equal contents give equal archives.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._inode = 0
        self._directories = {PurePosixPath(), PurePosixPath("/")}

    def directory(self, name: str | PurePath) -> None:
        """Write a directory and those that it is in, each once."""
        path = PurePosixPath(name)
        if path not in self._directories:
            self.directory(path.parent)
            self._directories.add(path)
            self._entry(str(path), stat.S_IFDIR | 0o755)

    def file(self, name: str, content: bytes, mode: int = 0o755, mtime: int = 0) -> None:
        """Write a file, and the directories that it is in."""
        self.directory(PurePosixPath(name).parent)
        self._entry(name, stat.S_IFREG | mode, content, mtime=mtime)

    def character_device(self, name: str, major: int, minor: int) -> None:
        self._entry(name, stat.S_IFCHR | 0o600, device=(major, minor))

    def close(self) -> None:
        """End the archive; the stream stays open."""
        self._entry("TRAILER!!!", 0)

    def _entry(
        self,
        name: str,
        mode: int,
        content: bytes = b"",
        device: tuple[int, int] = (0, 0),
        mtime: int = 0,
    ) -> None:
        self._inode += 1
        path = name.lstrip("/").encode() + b"\0"
        links = 2 if stat.S_ISDIR(mode) else 1
        # inode, mode, uid, gid, links, mtime, size, device of the file (2), device it is (2),
        # length of name, checksum
        numbers = (self._inode, mode, 0, 0, links, mtime, len(content), 0, 0, *device, len(path), 0)
        header = b"070701" + b"".join(b"%08X" % number for number in numbers)
        self._padded(header + path)
        self._padded(content)

    def _padded(self, data: bytes) -> None:
        self._stream.write(data + bytes(-len(data) % 4))
