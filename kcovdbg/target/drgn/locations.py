# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source locations by drgn: of a kernel, or of an image file without memory."""

from __future__ import annotations

import os

import drgn

from kcovdbg.errors import TargetError
from kcovdbg.model.location import Frame


def frames_at(program: drgn.Program, address: int) -> tuple[Frame, ...]:
    """Return the source location of an instruction, in about 170 microseconds.

    :param address: in the running kernel; for a return address, one less.
    :return: innermost frame first; empty when debug info does not cover it.
    """
    try:
        locations = program.source_location(address)
    except LookupError:
        return ()
    except Exception as error:
        # drgn raises bare Exceptions for debug info without line tables or ranges.
        if type(error) is not Exception:
            raise
        return ()
    return tuple(
        [
            Frame(location.name() or None, location.filename or None, location.line or None, location.column or None)
            for location in locations
        ]
    )


def open_image(path: str | os.PathLike[str], start: int, end: int, platform: drgn.Platform | None = None) -> drgn.Program:
    """Open the debug info of a linked image, with addresses as in the image.

    :param start: the first address of its code.
    :param end: the address after the last one.
    :param platform: of the image, for its types; :func:`frames_at` needs none.
    :raises TargetError: when drgn cannot use the file.
    """
    program = drgn.Program(platform)
    module = program.extra_module(os.fspath(path), create=True)
    try:
        module.try_file(path, force=True)
    except Exception as error:
        # drgn raises bare Exceptions for damaged files.
        raise TargetError(f"{path}: {error}") from error
    if module.debug_file_status != drgn.ModuleFileStatus.HAVE:
        raise TargetError(f"{path} has no debug info", hint="build the kernel with CONFIG_DEBUG_INFO")
    module.address_range = (start, end)
    return program
