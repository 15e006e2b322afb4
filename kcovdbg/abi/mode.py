# SPDX-License-Identifier: LGPL-2.1-or-later
"""Modes of ``enum kcov_mode``, flag bits in a task's mode word, and requests that enable a mode.

The name of a mode is its enumerator without the prefix. Its number differs between kernels
(kcov-abi.md 3.1 and 8.6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kcovdbg.abi.generations import MODE_PREFIX, Feature
from kcovdbg.abi.record import CMP, PC, Codec

# A task's mode word has a mode and flags. Since Linux kernel commit 0ed557aa8139 ("sched/core /
# kcov: avoid kcov_area during task switch") (in v4.18) bit 30 is set in every task that is switched
# out, although it may never have used KCOV.
IN_CTXSW: Final = 1 << 30

DISABLED: Final = "DISABLED"
INIT: Final = "INIT"
REMOTE: Final = "REMOTE"

# A task records in all modes except these, INIT, and modes whose names begin with INIT.
_IDLE_MODES: Final = frozenset({DISABLED, REMOTE, "INVALID"})


class Ioctl(NamedTuple):
    """A request of KCOV's file; ``_IOC()`` makes its number, which differs between
    architectures.
    """

    number: int
    direction: str = ""
    """``r`` for ``_IOR()``, ``w`` for ``_IOW()``, empty for ``_IO()``."""
    size: int = 0
    """Size of the argument's type, which is a part of the number."""
    letter: str = "c"
    """The device's type number."""


ENABLE: Final = Ioctl(100)


class DeviceRequests(NamedTuple):
    """The other requests of a posted series' device."""

    file: str
    """Name of its file in the folder of KCOV's file."""
    init: Ioctl
    disable: Ioctl
    remote_enable: Ioctl
    """Takes one handle."""
    remote_disable: Ioctl


@dataclass(frozen=True, slots=True)
class EnableRequest:
    """The request by which user space enables a mode."""

    argument: int = 0
    """Argument of the ioctl, unless ``prefix_words`` returns it."""
    feature: str | None = None
    """Feature of the kernels that have it; None if all kernels have it."""
    since: str = ""
    """Release or posted series that added it."""
    ioctl: Ioctl = ENABLE
    """The request that enables it."""
    records_once: bool = False
    """Whether the kernel records each point only once."""
    reset: Ioctl | None = None
    """The request that removes all records; None if there is none."""
    second: Mode | None = None
    """The mode by whose format the second buffer is read, if there is one."""
    prefix_words: Callable[[int], int] | None = None
    """Returns the number of words before the count in a buffer of some size, which is the ioctl's
    argument; None if there is no prefix.
    """
    errors: Mapping[tuple[str, int | str], tuple[str, str]] = field(default_factory=dict)
    """Message and hint for each of its errors, by the step and the errno or cause
    (:mod:`kcovdbg.collect.requests`).
    """
    remark: str | None = None
    """A note on records that are always missing."""
    device: DeviceRequests | None = None
    """The other requests, if another device than KCOV's own records in this mode."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode, and the format of its records."""

    name: str
    """The enumerator of ``enum kcov_mode`` without the prefix, or user space's name of the mode:
    ``TRACE_PC``. Trace files have this name.
    """
    codec: Codec
    request: EnableRequest | None = None
    """None if kcovdbg cannot collect in it."""

    @property
    def user_name(self) -> str:
        """Name to give on the command line: ``pc``."""
        return self.name.removeprefix("TRACE_").lower().replace("_", "-")


MODES: Final = (
    Mode("TRACE", PC),
    Mode("TRACE_PC", PC, EnableRequest()),
    Mode("TRACE_CMP", CMP, EnableRequest(argument=1, feature=Feature.COMPARISONS, since="v4.15")),
)
"""Mainline's modes that record. TRACE is the only one up to v4.14."""


def strip_flags(word: int, flags: int) -> int:
    """Return the mode in ``task_struct.kcov_mode`` without flag bits.

    :param word: the member as stored, ``unsigned int``.
    :param flags: the bits that this kernel uses as flags.
    """
    return word & ~flags & 0xFFFFFFFF


# Modes are small numbers, even unknown ones: this bit and higher ones are flags.
_FIRST_FLAG: Final = 8
# A word with more unknown bits is damaged.
_MOST_UNKNOWN: Final = 2


class ModeNumbers(NamedTuple):
    """The numbers of one kernel's modes."""

    values: frozenset[int]
    """The modes and their legal combinations; empty if the debug info has no names of modes."""
    task_flags: int
    """The flags that this kernel is known to have. An object's mode with one of them is damaged."""
    are_complete: bool
    """Whether these are all modes; if not, a low bit may belong to a mode."""

    def split(self, word: int) -> tuple[int, int]:
        """Split a word into a mode and the other bits, which are neither part of a mode nor a known
        flag.

        :param word: the mode word of an object, or of a task after :func:`strip_flags`.
        :return: the word itself and 0 if it is no mode with other bits.
        """
        used = self.task_flags
        for number in self.values:
            used |= max(number, 0)
        unknown = word & ~used
        rest = word & used
        is_flag = unknown >> _FIRST_FLAG << _FIRST_FLAG == unknown
        # A low bit without a mode beside it may be a mode itself.
        has_flags = is_flag or (self.are_complete and rest)
        is_mode = rest in self.values and word not in self.values
        if is_mode and has_flags and unknown.bit_count() <= _MOST_UNKNOWN:
            return rest, unknown
        return word, 0


def bit_numbers(word: int) -> list[int]:
    """Return the numbers of the bits that are set in a word, ascending."""
    return [number for number in range(word.bit_length()) if word >> number & 1]


def name_bits(bits: int) -> str:
    """Return the names of bits of a word: ``bit 29``."""
    numbers = [*map(str, bit_numbers(bits))]
    return f"bit {numbers[0]}" if len(numbers) == 1 else f"bits {' and '.join(numbers)}"


def plain_name(enumerator: str) -> str:
    """Return the name of a mode: the enumerator in upper case, without the prefix."""
    # Kernels older than the merged one spell the prefix in lower case.
    return enumerator.upper().removeprefix(MODE_PREFIX)


def mode_name(value: int, enumerators: Mapping[str, int]) -> str:
    """Return the name of a mode.

    :param value: the mode without flag bits.
    :param enumerators: the enumerators of ``enum kcov_mode`` in this kernel, with prefix.
    :return: for instance ``TRACE_PC``, or the number in hexadecimal if the enumeration does not
        have it.
    """
    for name, number in enumerators.items():
        if number == value:
            return plain_name(name)
    # Zero is "not initialised" where the enumeration has no name for it.
    return DISABLED if value == 0 else f"{value:#x}"


def is_known(name: str) -> bool:
    """Return whether this is the name of a mode, and not the number of one that the kernel's
    enumeration lacks.
    """
    return not name.startswith("0x")


def is_tracing(name: str) -> bool:
    """Return whether a task in this mode records coverage.

    A mode that is only known by its number does not count.
    """
    return is_known(name) and name not in _IDLE_MODES and not name.startswith(INIT)
