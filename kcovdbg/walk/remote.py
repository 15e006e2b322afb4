# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov_remote_map``: the handles that background sections look up."""

from __future__ import annotations

from typing import Final, NamedTuple

from kcovdbg.abi.era import Feature
from kcovdbg.abi.handle import find_bucket
from kcovdbg.errors import MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.target import Target
from kcovdbg.walk.chain import follow_chain
from kcovdbg.walk.layout import REMOTE, Layout
from kcovdbg.walk.pointer import check_pointer

# DEFINE_HASHTABLE(kcov_remote_map, 4) in every version seen; the symbol's own type says when that changes.
_DEFAULT_BUCKETS: Final = 16
# Each KCOV_REMOTE_ENABLE registers up to 257 handles; and they spread over 16 chains.
MAX_CHAIN: Final = 1 << 16
"""Entries of a chain; one with more is damaged."""
# Of 500 owners with all handles that they may have; whoever loops one chain may loop them all.
MAX_ENTRIES: Final = 1 << 17
"""Entries of all chains together."""


class RemoteEntry(NamedTuple):
    """What ``struct kcov_remote`` says."""

    address: int
    handle: int | None
    kcov: int | None
    bucket: int


class RemoteMap(NamedTuple):
    """The entries of the hash and what couldn't be read of it."""

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
        return RemoteMap(0, (), (f"the debug info has no {REMOTE}: handles can't be read",))
    try:
        head = target.symbol("kcov_remote_map")
        _, length = target.variable_type("kcov_remote_map")
        link_offset = layout.remote.offset("next")
    except (MissingSymbolError, MissingTypeError) as error:
        return RemoteMap(0, (), (f"handles can't be found: {error}",))
    buckets = length or _DEFAULT_BUCKETS
    word = target.word_size
    order = "big" if target.big_endian else "little"
    try:
        heads = target.read(head.address, buckets * word)
    except ReadError as error:
        return RemoteMap(buckets, (), (f"kcov_remote_map can't be read: {error}",))

    entries: list[RemoteEntry] = []
    remarks: list[str] = []
    remote = layout.remote
    bits = buckets.bit_length() - 1
    for bucket in range(buckets):
        first = int.from_bytes(heads[bucket * word : (bucket + 1) * word], order)  # type: ignore[arg-type]

        def read_entry(link: int, before: int, bucket: int = bucket) -> tuple[RemoteEntry, int | None]:
            address = link - link_offset
            check_pointer(target, address, REMOTE)
            handle, kcov, following, back = remote.read(target, address)
            # An entry that is in the wrong bucket is shown, and one with a damaged link back: what is both is none.
            if back not in (None, before) and not target.live and (handle is None or find_bucket(handle, bits, word) != bucket):
                raise ReadError(f"{address:#x}, which {before:#x} leads to, isn't an entry of it", address)
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
