# SPDX-License-Identifier: LGPL-2.1-or-later
"""A fake KCOV device behind the collector's table of calls, for any kernel: a buffer is a file in
memory.
"""

import errno
import os
from dataclasses import replace

from kcovdbg._native import ffi, lib
from kcovdbg.abi.mode import Ioctl
from kcovdbg.collect.command_run import collect_command

# FIOCLEX of <asm-generic/ioctls.h>: a request that every file takes, for tasks that ptrace makes
# call ioctl().
FIOCLEX = Ioctl(0x51, letter="T")
# On architectures with the generic <asm/ioctl.h>.
INIT_TRACE, ENABLE, UNIQUE_ENABLE = 0x80086301, 0x6364, 0x40086367


def accepted(mode):
    """Return the mode with a request to enable it that every file accepts."""
    return mode._replace(request=replace(mode.request, ioctl=FIOCLEX))


class FakeKcov:
    """A fake device. It must live as long as the users of its table."""

    def __init__(self):
        self.requests = []
        self.errors = {}
        """Request, or "open" or "map" -> errno."""
        self.refuse: set[int] | str = set()
        """Arguments of requests to enable that are EINVAL; "once": the first such request."""
        self.mapped = []
        """Offset and length of each mapping."""
        self.size = 0
        self.device = ffi.new("struct kcovdbg_device *")
        self._keep = []
        functions = {
            "open": self._open,
            "ioctl": self._ioctl,
            "map": self._map,
            "close": self._close,
        }
        for name, field in ffi.typeof("struct kcovdbg_device").fields:
            self._keep.append(ffi.callback(field.type, functions[name]))
            setattr(self.device, name, self._keep[-1])
        self._native_map = lib.kcovdbg_kernel().map
        self.open_count = 0

    def collect_command(self, request, find_holder=None):
        """Follow a command as the collector does, with this device."""
        mode = accepted(request.mode)
        return collect_command(
            replace(request, mode=mode, path="/fake", device=self.device), find_holder
        )

    def _fails(self, what):
        ffi.errno = self.errors.get(what, 0)
        return bool(ffi.errno)

    def _open(self, _path):
        if self._fails("open"):
            return -1
        self.open_count += 1
        return os.memfd_create("kcov")

    def _ioctl(self, fd, request, argument):
        self.requests.append((request, argument))
        if self._fails(request):
            return -1
        if request in (ENABLE, UNIQUE_ENABLE):
            is_refused = self.refuse == "once" or argument in self.refuse
            if self.refuse == "once":
                self.refuse = set()
            if is_refused:
                ffi.errno = errno.EINVAL
                return -1
        if request == INIT_TRACE:
            self.size = argument
            os.ftruncate(fd, argument * 16)
        return 0

    def _map(self, address, length, fd, offset):
        if self._fails("map"):
            return -1
        self.mapped.append((offset, length))
        return self._native_map(address, length, fd, offset)

    def _close(self, fd):
        # A low descriptor is closed once the same file has a high one.
        self.open_count -= fd >= 1000
        try:
            os.close(fd)
        except OSError:
            ffi.errno = errno.EBADF
            return -1
        return 0


def record_into(fd, words):
    """Write records as the kernel does: the count, and as many words after it."""
    data = b"".join(word.to_bytes(8, "little") for word in words)
    os.pwrite(fd, data, 8)
    os.pwrite(fd, len(words).to_bytes(8, "little"), 0)
