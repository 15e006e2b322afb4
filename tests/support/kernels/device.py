# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes the device of kcov_dataflow into a kernel in memory: an object of a task, one with a
handle, one that is idle.
"""

HANDLE = 0x0100000000000007
WORDS = 512
REMOTE_WORDS = 1 << 20
UNREADABLE = 0xBADADD85
LOCAL, WORKER = 44, 1


def header(kind, sequence, values, size=0, argument=0):
    return sequence | kind << 28 | values << 32 | size << 48 | argument << 56


def argument(sequence, pc, number, value, size=4, pointer=0xFFFFC90000ABC000):
    return [header(0xE, sequence, 1, size, number), pc, pointer, value]


def members(sequence, pc, number, values, size, pointer):
    return [header(0xE, sequence, len(values), size, number), pc, pointer, *values]


def returned(sequence, pc, value, size=8):
    return [header(0xF, sequence, 1, size), pc, 0xFFFFC90000ABC008, value]


def compared(sequence, pc, kind, first, second):
    return [header(0xC, sequence, 2), pc, kind, first, second]


def records_of(kernel):
    """What the task's buffer has: records, each a list of words."""
    pc = kernel.text + 0x40
    return [
        argument(1, pc, 0, 5),
        members(2, pc, 1, (0x10, UNREADABLE), 16, 0xFFFF888003005000),
        compared(3, pc + 8, 5, 2, 7),
        returned(4, pc + 16, 2**64 - 1),
    ]


def early(kind, sequence, pc, pointer, values, size=0, argument=0, count=0):
    """Return a record of the second posting.

    :param count: how many values its header says that there are.
    """
    packed = pointer & (1 << 48) - 1 | size << 48 | argument << 56
    return [kind << 28 | count << 24 | sequence, pc, packed, *values]


def early_records(pc):
    """What the second posting leaves."""
    return [
        early(0xE, 1, pc, 0xFFFFC90000ABC000, (5,), 4, count=1),
        early(0xE, 2, pc, 0xFFFF888003005000, (0x10, UNREADABLE, 0xE0000003, 0x10), 32, 1, 4),
        early(0xF, 3, pc + 8, 0xFFFFC90000ABC008, (2**64 - 1,), 8, count=1),
    ]


class _Files:
    """Objects of the device, each with a file that a process has open."""

    def __init__(self, kernel, objects):
        self.kernel = kernel
        self.objects, self.areas, self.files = {}, {}, {}
        self.operations = kernel.add_symbol("kcov_df_fops", 256)
        for fd, (name, words) in enumerate(objects.items(), 30):
            area = self.areas[name] = kernel.allocate_area(WORDS * 8, "kcov_df_ioctl")
            self.fill(area, words)
            df = self.objects[name] = kernel.allocate_type("struct kcov_dataflow")
            kernel.put(df, "struct kcov_dataflow", refcount=1, size=WORDS, area=area)
            self.files[name] = kernel.allocate_type("struct file")
            kernel.put(self.files[name], "struct file", f_op=self.operations, private_data=df)
            self.install("fuzz", fd, self.files[name])

    def fill(self, area, words):
        for index, word in enumerate((len(words), *words)):
            self.kernel.write_word(area + 8 * index, word, 8)

    def install(self, table, fd, file):
        """Open a file in a table that has room for it."""
        kernel = self.kernel
        embedded = kernel.tables[table] + kernel.offset("struct files_struct", "fdtab")

        def member(name):
            return kernel.read_word(embedded + kernel.offset("struct fdtable", name))

        bits = 8 * kernel.word
        word = member("open_fds") + fd // bits * kernel.word
        kernel.write_word(member("fd") + fd * kernel.word, file)
        kernel.write_word(word, kernel.read_word(word) | 1 << fd % bits)


class EarlyDevice(_Files):
    """The device of the second posting: ``local``, enabled for a task, and ``idle``."""

    def __init__(self, kernel):
        records = [
            word
            for record in early_records(kernel.text + 0x40 + kernel.target.kaslr_offset)
            for word in record
        ]
        super().__init__(kernel, {"local": records, "idle": ()})
        task = kernel.tasks[LOCAL]
        values = {
            "kcov_df_area": self.areas["local"],
            "kcov_df_size": WORDS,
            "kcov_df_seq": 3,
            "kcov_df_enabled": 1,
        }
        kernel.put(task, "struct task_struct", **values)
        kernel.put(self.objects["local"], "struct kcov_dataflow", t=task)


class Device(_Files):
    """The device's structures, by name: ``local``, ``remote``, ``idle``."""

    def __init__(self, kernel):
        records = [word for record in records_of(kernel) for word in record]
        super().__init__(kernel, {"local": records, "remote": (), "idle": ()})
        self.session(LOCAL, "local", self.areas["local"], WORDS, 0)
        kernel.put(self.objects["local"], "struct kcov_dataflow", refcount=2, t=kernel.tasks[LOCAL])
        scratch = self.areas["section"] = kernel.allocate_area(
            REMOTE_WORDS * 8, "kcov_df_remote_start"
        )
        self.fill(scratch, argument(1, kernel.text + 0x80, 2, 3))
        self.session(WORKER, "remote", scratch, REMOTE_WORDS, 1)
        kernel.put(self.objects["remote"], "struct kcov_dataflow", refcount=2, remote_handle=HANDLE)
        self.table = kernel.add_symbol("kcov_df_remote_map", 16 * kernel.word)
        kernel.target.variables["kcov_df_remote_map"] = 16
        self.entry = self.publish("remote", HANDLE, 3)
        self.pool = kernel.add_symbol("kcov_df_scratch_pool", 2 * kernel.word)
        self.free = [self.allocate_section() for _ in range(2)]
        self.pool_count = kernel.add_symbol("kcov_df_scratch_pool_nr", kernel.word)
        self.set_free(self.free)

    def set_free(self, areas):
        """Set the list of free areas, and its length."""
        self.kernel.link(self.pool, areas)
        self.kernel.write_word(self.pool_count, len(areas))

    def allocate_section(self, size=REMOTE_WORDS * 8, caller="kcov_df_remote_start"):
        """Allocate an area of which only the first words are in memory."""
        area = self.kernel.allocate_area(64, caller, size)
        self.kernel.show_areas()
        return area

    def session(self, pid, name, area, size, depth):
        self.kernel.put(
            self.kernel.tasks[pid],
            "struct task_struct",
            kcov_df=self.objects[name],
            kcov_df_area=area,
            kcov_df_size=size,
            kcov_df_seq=1 << 31 | 4,
            kcov_df_remote_depth=depth,
            kcov_df_enabled=1,
        )

    def publish(self, name, handle, bucket):
        kernel = self.kernel
        entry = kernel.allocate_type("struct kcov_df_remote")
        head = self.table + bucket * kernel.word
        kernel.push(head, entry, "struct kcov_df_remote", handle=handle, df=self.objects[name])
        return entry
