# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes a scenario into memory as a kernel of a generation keeps it."""

from typing import Literal

from kcovdbg.model.memory import StackFrame, VmallocArea
from kcovdbg.series.unique_maps import UNIQ_BOTH
from kcovdbg.target.target import Symbol, Vma
from kcovdbg.walk.buffers import read_buffer
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.state import StateReader
from tests.support.kernels.declare import Declarations
from tests.support.kernels.device import Device, EarlyDevice
from tests.support.kernels.rows import COMMON, TASK
from tests.support.kernels.scenario import IN_CTXSW, IRQ_WORDS, make_scenario
from tests.support.memory_target import (
    MemorySlab,
    MemoryStacks,
    MemoryTarget,
    MemoryVmalloc,
    MemoryVmas,
)

PAGE = 4096
PF_EXITING, PF_KTHREAD = 0x4, 0x200000
TEXT = 0xFFFFFFFF81000000


class Kernel:
    """A scenario in memory.

    :param row: the generation.
    :param scenario: by default every state that it can have.
    """

    def __init__(
        self, row, scenario=None, *, word=8, big_endian=False, live=False, target_class=MemoryTarget
    ):
        self.row = row
        self.truth = scenario or make_scenario(row)
        self.word = word
        self.order: Literal["little", "big"] = "big" if big_endian else "little"
        self.buffer_word = row.kernel_words or word
        self._next = 0xFFFF888003000000 if word == 8 else 0xC3000000
        self._next_area = 0xFFFFC90000001000 if word == 8 else 0xF0001000
        self._next_image = TEXT + 0x1000000 if word == 8 else 0xC1000000
        declared = Declarations(word, big_endian).declare(COMMON).declare(row.more)
        first = "struct thread_info thread_info;" if row.cpu == "thread_info" else ""
        on_cpu = "int on_cpu;" + (" unsigned int cpu;" if row.cpu == "task" else "")
        declared.declare(TASK.format(first=first, on_cpu=on_cpu, kcov=row.task)).declare(
            row.kcov
        ).declare(row.percpu)
        self.target = target_class(
            types=declared.types,
            enums={"enum kcov_mode": dict(row.modes), "": dict(row.names)},
            cpu_numbers=range(self.truth.cpus),
            live=live,
            word_size=word,
            big_endian=big_endian,
            kernel_range=(0xFFFF800000000000, 2**64 - 1) if word == 8 else (0xC0000000, 2**32 - 1),
        )
        # What a dump without paging answers for small addresses: bytes, not a fault.
        self.target.segments[0] = bytearray((index * 37 + 11) & 0xFF for index in range(64 * 1024))
        self.tasks, self.objects, self.files, self.tables, self.spaces, self.areas = (
            {},
            {},
            {},
            {},
            {},
            {},
        )
        self.handles, self.irq_areas, self.buffers, self.references = {}, {}, {}, {}
        self.cached: dict[str, list[tuple[int, int]]] = {"task": [], "irq": []}
        self.maps = {}
        self.stacks = {}
        self._vmalloc = []
        self._build()

    # Memory.

    def allocate(self, size):
        address = self._next
        self._next += -(-size // 64) * 64 + 64
        self.target.segments[address] = bytearray(size)
        return address

    def allocate_type(self, type_name):
        return self.allocate(self.target.type_size(type_name))

    def allocate_area(self, size, caller, shown=None):
        address = self._next_area
        room = -(-size // PAGE) * PAGE
        self._next_area += room + PAGE
        self.target.segments[address] = bytearray(room)
        self._vmalloc.append(
            VmallocArea(address, shown or room, caller, caller in ("kcov_ioctl", "kcov_mmap"))
        )
        return address

    def show_areas(self):
        """Let the target list the areas that were allocated so far."""
        self.target.vmalloc = MemoryVmalloc(self._vmalloc)

    def add_symbol(self, name, size, address=None):
        if address is None:
            address = self._next_image
            self._next_image += -(-size // 64) * 64
            self.target.segments[address] = bytearray(size)
        self.target.symbols[name] = Symbol(name, address, size)
        return address

    def write_word(self, address, value, size=None):
        size = size or self.word
        self.target.write(address, (value & (1 << 8 * size) - 1).to_bytes(size, self.order))

    def put(self, address, type_name, **values):
        self.target.put(
            address, type_name, {name.replace("__", "."): value for name, value in values.items()}
        )

    def offset(self, type_name, path):
        return self.target.member(type_name, path).offset

    def link(self, head, nodes):
        """Make a circular list of list heads."""
        ring = [head, *nodes]
        for index, node in enumerate(ring):
            self.write_word(node, ring[(index + 1) % len(ring)])
            self.write_word(node + self.word, ring[index - 1])

    def read_word(self, address):
        return int.from_bytes(self.target.read(address, self.word), self.order)

    def reader(self):
        """Return a new reader of its state."""
        return StateReader(self.target, detect_layout(self.target))

    def read_buffer(self, name):
        reader = self.reader()
        return read_buffer(self.target, reader.layout, reader, name)

    def give_stack(self, pid, *functions):
        """Give a task a stack, innermost function first."""
        frames = [
            StackFrame(self.text, function, None, None, None, False) for function in functions
        ]
        self.stacks = {**self.stacks, self.tasks[pid]: frames}
        self.target.stacks = MemoryStacks(self.stacks)

    def push(self, head, address, type_name, path="hnode", **values):
        """Write a structure and put it in front of a hash table's chain."""
        node, first = address + self.offset(type_name, path), self.read_word(head)
        self.put(address, type_name, **values, **{f"{path}__next": first, f"{path}__pprev": head})
        if first:
            self.write_word(first + self.word, node)
        self.write_word(head, node)

    # Names of members.

    def _path(self, of, name):
        prefixes = {"task": "kcov_", "kcov": "", "saved": "saved_", "saved task": "kcov_saved_"}
        special = self.row.paths.get(f"{of} {name}")
        if special:
            return special
        if of == "task" and name == "kcov":
            return "kcov"
        if (
            name in ("size", "area", "sequence", "trace", "trace_size", "bitmap", "bitmap_size")
            and of in self.row.paths
        ):
            return self.row.paths[of] + name
        return prefixes[of] + name

    def _session(self, of, session, mode):
        """Return the members that hold a session."""
        if session is None:
            return {}
        kcov = self.truth.objects[session.kcov]
        if session.mode == "REMOTE":
            # The owner of a KCOV_REMOTE_ENABLE, saved like a session.
            return {
                self._path(of, "mode"): mode,
                self._path(of, "kcov"): self.objects[session.kcov],
            }
        if session.area is None:
            area, size = self.buffers[session.kcov], kcov.size
        else:
            area, size = self.areas[session.area], self.truth.areas[session.area][0]
        found = {
            self._path(of, "mode"): mode,
            self._path(of, "size"): size,
            self._path(of, "area"): area,
            self._path(of, "kcov"): self.objects[session.kcov],
        }
        if self.row.has_remote:
            found[self._path(of, "sequence")] = (
                kcov.sequence if session.sequence is None else session.sequence
            )
        if of in self.row.paths and self.row.has_trace:
            words = kcov.bitmap_words if session.area is None else 0
            found |= self._trace_members(of, area, size, words)
        return found

    def _trace_members(self, of, area, size, words):
        found = {
            self._path(of, "trace"): area + words * self.word,
            self._path(of, "trace_size"): size - words,
        }
        if words:
            found |= {
                self._path(of, "bitmap"): area,
                self._path(of, "bitmap_size"): words * self.word * 8,
            }
        return found

    def mode(self, name):
        """Return a mode's number."""
        return sum(self._mode(part) for part in name.split("|")) if name else 0

    def _mode(self, name):
        modes = {**self.row.modes, **self.row.macros}
        return next(
            number for full, number in modes.items() if full[len("KCOV_MODE_") :].upper() == name
        )

    # The kernel.

    def _build(self):
        truth, target, row = self.truth, self.target, self.row
        operations = self.add_symbol("kcov_fops", 256)
        self.text = TEXT if self.word == 8 else 0xC0100000
        self.add_symbol("_stext", PAGE, self.text)
        for pid, task in truth.tasks.items():
            size = target.type_size("struct task_struct")
            self.tasks[pid] = (
                self.add_symbol("init_task", size) if pid == 0 else self.allocate(size)
            )
            assert pid or task.is_idle
        for name in truth.objects:
            self.objects[name] = self.allocate_type("struct kcov")
        for name, kcov in truth.objects.items():
            if kcov.size and (kcov.mapped or not row.late_area):
                caller = "kcov_mmap" if row.late_area else "kcov_ioctl"
                self.buffers[name] = self.allocate_area(kcov.size * self.buffer_word, caller)
                if row.name == "J":
                    self._build_maps(name, kcov)
                else:
                    self._fill(self.buffers[name], kcov)
        for name, (words, count) in truth.areas.items():
            irq = name.startswith("irq")
            caller = "kcov_init" if irq else "kcov_remote_start"
            self.areas[name] = self.allocate_area(max(words, 1) * self.buffer_word, caller)
            self.write_word(self.areas[name], count)
            for index in range(count):
                self.write_word(
                    self.areas[name] + self.word * (1 + index), self.text + 0x10 * index
                )
        self._build_files(operations)
        self._build_tasks()
        self._build_objects()
        if row.has_remote:
            self._build_remote()
        if row.percpu:
            self._build_percpu()
        self.device = (
            Device(self) if row.has_device else EarlyDevice(self) if row.name == "D_EARLY" else None
        )
        self.show_areas()
        target.slab = MemorySlab({}, tuple(self.files.values()))
        schedule = StackFrame(self.text, "schedule", None, None, None, False)
        self.stacks = dict.fromkeys(self.tasks.values(), (schedule,))
        target.stacks = MemoryStacks(self.stacks)

    def _build_maps(self, name, kcov):
        """Series J keeps two hash maps for each object, with a pool and a buffer each; the object's
        own is the first one's.
        """
        for member in ("map", "map_edge"):
            address = self.allocate_type("struct kcov_map")
            size = kcov.size * self.buffer_word
            area = (
                self.buffers[name] if member == "map" else self.allocate_area(size, "kcov_map_init")
            )
            chunk = self.chunk()
            mem = self.allocate_area(kcov.size * chunk, "kcov_map_init")
            self.put(address, "struct kcov_map", area=area, mem=mem, pool=self.allocate(64))
            self.put(self.objects[name], "struct kcov", **{member: address})
            self.maps[name, member] = address
            edges = member == "map_edge"
            if edges == (kcov.mode == "TRACE_UNIQ_EDGE") or kcov.mode == UNIQ_BOTH:
                self._fill(area, kcov)
            if (
                "TRACE_UNIQ_EDGE" in kcov.mode
                if edges
                else "UNIQ" in kcov.mode and kcov.mode != "TRACE_UNIQ_EDGE"
            ):
                for index in range(kcov.count):
                    pc = (self.text + 0x10 * index) & (1 << 8 * self.word) - 1
                    comparison = (
                        {"type": 7, "arg1": index, "arg2": 2 * index} if "CMP" in kcov.mode else {}
                    )
                    self.add_entry(address, index, ent=pc, **comparison)

    def chunk(self):
        """What an entry takes of a map's memory: the pool counts in powers of two."""
        return 64 if self.word == 8 else 32

    def add_entry(self, kcov_map, place, bucket=None, **values):
        """Put an entry into a map, in front of its bucket; which bucket is its own the walk doesn't
        ask.
        """
        entry = (
            self.read_word(kcov_map + self.offset("struct kcov_map", "mem")) + place * self.chunk()
        )
        head = kcov_map + self.word * (place * 11 % 32768 if bucket is None else bucket)
        self.push(head, entry, "struct kcov_entry", "node", **values)
        return entry

    def _fill(self, area, kcov):
        comparisons = "CMP" in kcov.mode
        size = 8 if comparisons else self.buffer_word
        if kcov.bitmap_words:
            self.target.write(area, b"\x0e\x00\x00")
        start = area + kcov.bitmap_words * self.word
        self.write_word(start, kcov.count, size)
        for index in range(kcov.count):
            pc = (self.text + 0x10 * index) & (1 << 8 * size) - 1
            if comparisons:
                for word, value in enumerate((0x7, index, 2 * index, pc)):
                    self.write_word(start + size * (1 + 4 * index + word), value, size)
            else:
                self.write_word(start + size * (1 + index), pc, size)

    def _build_files(self, operations):
        target, truth = self.target, self.truth
        for name, kcov in truth.files.items():
            self.files[name] = self.allocate_type("struct file")
            values = (
                {"f_op": operations, "private_data": self.objects[kcov]}
                if kcov
                else {"f_op": operations + 0x1000}
            )
            self.put(self.files[name], "struct file", **values)
        for name, table in truth.tables.items():
            max_fds = -(-(max(table) + 1) // 64) * 64
            array, bitmap = self.allocate(max_fds * self.word), self.allocate(max_fds // 8)
            words = [0] * (max_fds // 8 // self.word)
            for fd, file in table.items():
                self.write_word(array + fd * self.word, self.files[file])
                words[fd // (8 * self.word)] |= 1 << fd % (8 * self.word)
            for index, word in enumerate(words):
                self.write_word(bitmap + index * self.word, word)
            files = self.tables[name] = self.allocate_type("struct files_struct")
            embedded = files + self.offset("struct files_struct", "fdtab")
            self.put(embedded, "struct fdtable", max_fds=max_fds, fd=array, open_fds=bitmap)
            self.put(files, "struct files_struct", fdt=embedded)
        mappings = {}
        for name, space in truth.spaces.items():
            mm = self.spaces[name] = self.allocate(256)
            mappings[mm] = [
                Vma(start, start + PAGE, 0, 0, self.files[file])
                for start, file in sorted(space.items())
            ]
        target.vmas = MemoryVmas(mappings)

    def _build_tasks(self):
        truth, target, row = self.truth, self.target, self.row
        node = self.offset("struct task_struct", "tasks")
        thread = self.offset("struct task_struct", "thread_node")
        groups: dict[int, list[int]] = {}
        for pid, task in truth.tasks.items():
            groups.setdefault(task.tgid, []).append(pid)
            flags = (PF_EXITING if task.exiting else 0) | (
                PF_KTHREAD if task.mm is None and not task.exiting else 0
            )
            values = {
                "pid": pid,
                "tgid": task.tgid,
                "comm": task.comm.encode().ljust(16, b"\0"),
                "flags": flags,
            }
            values |= {
                "on_cpu": int(task.running),
                "files": self.tables.get(task.files, 0),
                "mm": self.spaces.get(task.mm, 0),
            }
            if row.cpu == "stack":
                stack = self.allocate(256)
                self.put(stack, "struct thread_info", cpu=task.cpu)
                values["stack"] = stack
            else:
                values["thread_info.cpu" if row.cpu == "thread_info" else "cpu"] = task.cpu
            values |= self._kcov_members(task)
            target.put(self.tasks[pid], "struct task_struct", values)
        for tgid, pids in groups.items():
            signal = self.allocate_type("struct signal_struct")
            head = signal + self.offset("struct signal_struct", "thread_head")
            # After an execve the leader isn't the first on the list.
            order = pids if tgid != 40 else [pids[1], pids[0], *pids[2:]]
            self.link(head, [self.tasks[pid] + thread for pid in order])
            for pid in pids:
                self.put(self.tasks[pid], "struct task_struct", signal=signal)
        self.groups = groups
        self.link(self.tasks[0] + node, [self.tasks[tgid] + node for tgid in groups if tgid])
        self.run_queues = {}
        for cpu in range(truth.cpus):
            rq = self.run_queues[cpu] = self.allocate_type("struct rq")
            idle = self.tasks[0]
            if cpu:
                # Idle tasks of other CPUs are on no list.
                idle = self.allocate_type("struct task_struct")
                values = {"comm": f"swapper/{cpu}".encode().ljust(16, b"\0"), "flags": PF_KTHREAD}
                if row.cpu != "stack":
                    values["thread_info.cpu" if row.cpu == "thread_info" else "cpu"] = cpu
                target.put(idle, "struct task_struct", values)
            running = [
                self.tasks[pid]
                for pid, task in truth.tasks.items()
                if task.running and task.cpu == cpu
            ]
            self.put(rq, "struct rq", idle=idle, curr=running[0] if running else idle)
        target.per_cpu_addresses["runqueues"] = self.run_queues

    def session_mode(self, task, session):
        """Return the mode word of a session without flags."""
        if session is None:
            return self.mode("REMOTE") if task.owns and self.row.owner == "mode" else 0
        if session.word is not None:
            return session.word
        return self.mode(session.mode or self.truth.objects[session.kcov].mode)

    def _kcov_members(self, task):
        row = self.row
        values = self._session("task", task.session, self.session_mode(task, task.session))
        word = values.get(self._path("task", "mode"), self.session_mode(task, None))
        flagged = row.name not in ("E0", "E1", "E2 up to v4.17") and task.ran and not task.running
        if flagged:
            word |= 1 << 31 if row.name == "L" else IN_CTXSW
        values[self._path("task", "mode")] = word
        if task.owns and row.owner == "member":
            values["kcov_remote"] = self.objects[task.owns]
        elif task.owns and task.session is None:
            values["kcov"] = self.objects[task.owns]
        if row.has_remote:
            values["kcov_handle"] = task.handle
            if task.sequence:
                values[self._path("task", "sequence")] = task.sequence
        if row.saved:
            values["kcov_softirq"] = int(task.softirq)
        if row.saved == "task":
            values |= self._session(
                "saved task", task.saved, self.session_mode(task, task.saved) if task.saved else 0
            )
        if row.name == "X1" and task.session is not None and task.session.kcov == "ext":
            values["kcov_ext_format"] = 1
        return values

    def _build_objects(self):
        truth, row = self.truth, self.row
        count = "rc.counter" if row.name == "E0" else "refcount.refs.counter"
        if row.name not in ("E0",) and "atomic_t refcount" in row.kcov:
            count = "refcount.counter"
        for name, kcov in truth.objects.items():
            references = sum(file == name for file in truth.files.values()) + (
                kcov.owner is not None
            )
            for task in truth.tasks.values():
                # A section in flight holds a reference, and so does one that is interrupted.
                references += sum(
                    session is not None and session.kcov == name and session.area is not None
                    for session in (task.session, task.saved)
                )
            if row.name == "E0":
                references += sum(
                    truth.files[file] == name
                    for space in truth.spaces.values()
                    for file in space.values()
                )
            self.references[name] = references
            values = {
                count: references,
                self._path("kcov", "mode"): self.mode(kcov.mode),
                self._path("kcov", "size"): kcov.size,
                self._path("kcov", "area"): self.buffers.get(name, 0),
                "t": 0 if kcov.owner is None else self.tasks[kcov.owner],
            }
            if row.has_remote:
                values[self._path("kcov", "sequence")] = kcov.sequence
                values |= {
                    "remote": int(kcov.remote_size is not None),
                    "remote_size": kcov.remote_size or 0,
                }
            if "kcov" in row.paths and row.has_trace and kcov.size:
                values |= self._trace_members(
                    "kcov", self.buffers.get(name, 0), kcov.size, kcov.bitmap_words
                )
            if name == "ext" and row.name == "X1":
                values["kcov_ext_format"] = 1
            self.target.put(self.objects[name], "struct kcov", values)

    def find_bucket(self, handle):
        """``hash_min()`` of include/linux/hashtable.h, written out for both word sizes."""
        if self.word == 8:
            return (handle * 7046029254386353131 % 2**64) >> 60
        return (handle % 2**32 * 1640531527 % 2**32) >> 28

    def _build_remote(self):
        truth, target = self.truth, self.target
        table = self.add_symbol("kcov_remote_map", 16 * self.word)
        target.variables["kcov_remote_map"] = 16
        for handle, name in truth.handles:
            entry = self.allocate_type("struct kcov_remote")
            self.handles[handle] = entry
            head = table + self.find_bucket(handle) * self.word
            self.push(head, entry, "struct kcov_remote", handle=handle, kcov=self.objects[name])
        lists = 2 if self.row.saved == "task" else 1
        heads = self.add_symbol("kcov_remote_areas", lists * 2 * self.word)
        target.variables["kcov_remote_areas"] = 2 if lists == 2 else None
        for index, kind in enumerate(("task", "irq")[:lists]):
            for words in truth.cached.get(kind, ()):
                caller = "kcov_init" if kind == "irq" else "kcov_remote_start"
                area = self.allocate_area(words * self.buffer_word, caller)
                self.put(area, "struct kcov_remote_area", size=words)
                self.cached[kind].append((area, words))
            self.link(heads + index * 2 * self.word, [area for area, _ in self.cached[kind]])

    def _build_percpu(self):
        if self.row.saved != "cpu":
            # Nothing is in it but a lock of no size: the symbol is absent.
            return
        addresses = self.target.per_cpu_addresses["kcov_percpu_data"] = {}
        for cpu in range(self.truth.cpus):
            address = addresses[cpu] = self.allocate_type("struct kcov_percpu_data")
            name = f"irq {cpu}"
            if name not in self.areas:
                self.irq_areas[cpu] = self.allocate_area(IRQ_WORDS * self.buffer_word, "kcov_init")
            values = {"irq_area": self.areas.get(name) or self.irq_areas[cpu]}
            for task in self.truth.tasks.values():
                if task.running and task.cpu == cpu and task.saved is not None:
                    values |= self._session(
                        "saved", task.saved, self.session_mode(task, task.saved)
                    )
            self.target.put(address, "struct kcov_percpu_data", values)
