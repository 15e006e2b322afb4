# SPDX-License-Identifier: LGPL-2.1-or-later
"""The device tree of a guest, with a seed for KASLR where QEMU's machine has none in it."""

from __future__ import annotations

import secrets
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.lab.errors import LabError

# struct fdt_header of the device tree's specification: magic, size, offsets of structure, strings and reservations, versions,
# boot CPU, sizes of strings and structure.
_HEADER = struct.Struct(">10I")
_PROPERTY = struct.Struct(">III")
_BEGIN_NODE, _HAS_PROPERTY = 1, 3
_CHOSEN = struct.pack(">I", _BEGIN_NODE) + b"chosen\0\0"
_SEED = b"kaslr-seed"


def write_seeded_tree(command: Sequence[str], machine: str, path: Path) -> None:
    """Have QEMU write the device tree of a machine, and put a random seed in.

    :param command: QEMU's, with all that decides about the tree.
    :param machine: the value of its option -machine.
    """
    arguments = [f"{machine},dumpdtb={path}" if word == machine else word for word in command]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    if done.returncode or not path.exists():
        raise LabError(f"QEMU wrote no device tree: {done.stderr.strip()}")
    path.write_bytes(add_seed(path.read_bytes(), secrets.token_bytes(8)))


def add_seed(tree: bytes, seed: bytes) -> bytes:
    """Return a flattened device tree with /chosen/kaslr-seed."""
    magic, _, at_nodes, at_strings, at_reserved, version, oldest, cpu, strings_size, nodes_size = _HEADER.unpack_from(tree)
    nodes, strings = tree[at_nodes : at_nodes + nodes_size], tree[at_strings : at_strings + strings_size]
    # Properties come before the nodes below.
    start = nodes.index(_CHOSEN) + len(_CHOSEN)
    nodes = nodes[:start] + _PROPERTY.pack(_HAS_PROPERTY, len(seed), len(strings)) + seed + nodes[start:]
    strings += _SEED + b"\0"
    # Entries end with one of zeros.
    reserved = tree[at_reserved : tree.index(bytes(16), at_reserved) + 16]
    at_reserved = _HEADER.size
    at_nodes = at_reserved + len(reserved)
    at_strings = at_nodes + len(nodes)
    size = at_strings + len(strings)
    header = (magic, size, at_nodes, at_strings, at_reserved, version, oldest, cpu, len(strings), len(nodes))
    return _HEADER.pack(*header) + reserved + nodes + strings
