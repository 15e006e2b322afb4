# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov_remote_map``: the handles that background sections look up."""

from __future__ import annotations

from typing import Final, NamedTuple

from kcovdbg.abi.generations import Feature
from kcovdbg.abi.handle import find_bucket
from kcovdbg.errors import MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.target.lists import follow_chain
from kcovdbg.target.pointer import check_pointer, strip_tag
from kcovdbg.target.protocol import Target
from kcovdbg.walk.layout import REMOTE, Layout

# DEFINE_HASHTABLE(kcov_remote_map, 4) in every known version; the symbol's type is used where it is known.
_DEFAULT_BUCKETS: Final = 16
# Each KCOV_REMOTE_ENABLE registers up to 257 handles; and they spread over 16 chains.
MAX_CHAIN: Final = 1 << 16
"""Entries of a chain; one with more is damaged."""
# The handles of 500 owners with as many as they may have: damage may loop every chain.
MAX_ENTRIES: Final = 1 << 17
"""Entries of all chains together."""


class RemoteEntry(NamedTuple):
    """``struct kcov_remote``."""

    address: int
    handle: int | None
    kcov: int | None
    bucket: int


class RemoteMap(NamedTuple):
    """The entries of the hash, and what could not be read of it."""

    buckets: int
    entries: tuple[RemoteEntry, ...]
    remarks: tuple[str, ...]


def read_remote_map(target: Target, layout: Layout) -> RemoteMap:
    """Read the hash of remote handles.

    ``DEFINE_HASHTABLE(kcov_remote_map, 4)``, since Linux kernel commit eec028c9386e ("kcov: remote coverage support") (v5.5).
    """
    if not layout.generation.has(Feature.REMOTE):
        return RemoteMap(0, (), (f"this kernel's KCOV ({layout.generation.era}) has no remote handles",))
    if layout.remote is None:
        return RemoteMap(0, (), (f"the debug info has no {REMOTE}: handles could not be read",))
    try:
        head = target.symbol("kcov_remote_map")
        _, length = target.variable_type("kcov_remote_map")
        link_offset = layout.remote.offset("next")
    except (MissingSymbolError, MissingTypeError) as error:
        return RemoteMap(0, (), (f"handles could not be found: {error}",))
    buckets = length or _DEFAULT_BUCKETS
    word = target.word_size
    order = "big" if target.big_endian else "little"
    try:
        heads = target.read(head.address, buckets * word)
    except ReadError as error:
        return RemoteMap(buckets, (), (f"kcov_remote_map could not be read: {error}",))

    entries: list[RemoteEntry] = []
    remarks: list[str] = []
    remote = layout.remote
    bits = buckets.bit_length() - 1
    for bucket in range(buckets):
        stored = int.from_bytes(heads[bucket * word : (bucket + 1) * word], order)  # type: ignore[arg-type]
        first = strip_tag(target, stored)

        def read_entry(link: int, before: int, bucket: int = bucket) -> tuple[RemoteEntry, int | None]:
            address = link - link_offset
            check_pointer(target, address, REMOTE)
            handle, kcov, following, back = remote.read(target, address)
            # An entry in the wrong bucket is shown, and so is one with a damaged link back; one with both is not an entry.
            if back not in (None, before) and not target.live and (handle is None or find_bucket(handle, bits, word) != bucket):
                raise ReadError(f"{address:#x}, which {before:#x} leads to, is not an entry of it", address)
            return RemoteEntry(address, handle, kcov, bucket), following

        chain = follow_chain(first, 0, read_entry, min(MAX_CHAIN, MAX_ENTRIES - len(entries)), head.address + bucket * word)
        while True:
            try:
                entries.append(next(chain))
            except StopIteration as stop:
                if stop.value is not None:
                    remarks.append(f"bucket {bucket} of kcov_remote_map is broken: {stop.value}")
                break
    return RemoteMap(buckets, tuple(entries), tuple(remarks))
