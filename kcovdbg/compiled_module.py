# SPDX-License-Identifier: LGPL-2.1-or-later
"""The compiled module, and the arrays that its functions are given.

The headers in native/ document these functions.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Literal

from kcovdbg.errors import CapabilityError
from kcovdbg.limits import need_memory

_C_TYPES: Final = {"B": "uint8_t[]", "H": "uint16_t[]", "I": "uint32_t[]", "Q": "uint64_t[]"}


@cache
def load_native() -> tuple[Any, Any]:
    """Return cffi's ``ffi`` and ``lib`` of the compiled module.

    :raises CapabilityError: when it was not compiled for this Python.
    """
    # Imported on first use: loading cffi takes as long as everything else, and most commands read
    # no buffer.
    try:
        from kcovdbg._native import ffi, lib
    except ImportError as error:
        raise CapabilityError(
            f"the compiled module could not be loaded: {error}",
            hint="install a C compiler, then kcovdbg again; in a checkout: pip install -e .",
        ) from None
    return ffi, lib


def column(
    code: Literal["B", "H", "I", "Q"], values: Sequence[int], count: int | None = None
) -> Any:
    """Return a C pointer to the items of an array; it is valid as long as it is referred to.

    :param code: the type of the items, as in the array module.
    :param count: the number of items that the C function expects; None to accept any.
    :raises ValueError: when the number or the size of items differs.
    """
    ffi, _ = load_native()
    pointer = ffi.from_buffer(_C_TYPES[code], values)
    if count is not None and len(pointer) != count:
        raise ValueError(f"{len(values)} items where {count} are wanted")
    return pointer


def make_room(code: Literal["B", "I", "Q"], count: int) -> Any:
    """Return C's array with room for so many items, which it does not set.

    :raises LimitError: when it takes more memory than a command may.
    """
    ffi, _ = load_native()
    need_memory(array(code).itemsize * count, f"an array of {count:,} items")
    return ffi.new_allocator(should_clear_after_alloc=False)(_C_TYPES[code], count)


def copy_array(code: str, pointer: Any, count: int) -> array[int]:
    """Return a copy of the items that C's array has.

    :param code: the type of the items, as in the array module.
    :param pointer: the first item; any pointer if there are none.
    """
    ffi, _ = load_native()
    copied = array(code)
    if count:
        copied.frombytes(ffi.buffer(pointer, count * copied.itemsize))
    return copied


def zeros(code: str, count: int) -> array[int]:
    """Return an array of zeros.

    :raises LimitError: when it takes more memory than a command may.
    """
    size = array(code).itemsize * count
    need_memory(size, f"an array of {count:,} items")
    return array(code, (0,)) * count
