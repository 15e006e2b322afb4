# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asks for local, then for remote coverage, each with an object of its own, and prints the errno of
each request, or 0.
"""

import fcntl
import os
import struct

INIT_TRACE, ENABLE, REMOTE_ENABLE = 0x80086301, 0x6364, 0x40186366


def ask(request, argument):
    descriptor = os.open("/sys/kernel/debug/kcov", os.O_RDWR)
    try:
        fcntl.ioctl(descriptor, INIT_TRACE, 512)
        fcntl.ioctl(descriptor, request, argument)
    except OSError as error:
        return error.errno
    finally:
        os.close(descriptor)
    return 0


# struct kcov_remote_arg: mode, size of an area, number of handles, padding, common handle.
print(ask(ENABLE, 0), ask(REMOTE_ENABLE, struct.pack("4IQ", 0, 512, 0, 0, 0x77)))
