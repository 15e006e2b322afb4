# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects of slab caches as drgn's helpers find them."""

import re

from drgn.helpers.linux.slab import (
    find_slab_cache,
    for_each_slab_cache,
    slab_cache_for_each_allocated_object,
)


def list_files(prog):
    return sorted(_allocated(find_slab_cache(prog, "filp")))


def list_general_objects(prog, size):
    """Return the objects of the smallest general caches of GFP_KERNEL with room for the size, one
    of each family.
    """
    best = {}
    for cache in sorted(for_each_slab_cache(prog), key=lambda cache: -cache.object_size.value_()):
        name = cache.name.string_().decode()
        if re.match(r"kmalloc-(?!dma|cg|rcl)", name) and cache.object_size.value_() >= size:
            best[name.rpartition("-")[0]] = cache
    return sorted(address for cache in best.values() for address in _allocated(cache))


def _allocated(cache):
    return (int(found) for found in slab_cache_for_each_allocated_object(cache, "char"))
