# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes the device of kcov_dataflow into a kernel in memory: an object of a task, one with a handle, one that is idle."""

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


class Device:
    """The device's structures, by name: ``local``, ``remote``, ``idle``."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.objects, self.areas, self.files = {}, {}, {}
        self.operations = kernel.add_symbol("kcov_df_fops", 256)
        records = [word for record in records_of(kernel) for word in record]
        for name, fd, words in (("local", 30, records), ("remote", 31, ()), ("idle", 32, ())):
            area = self.areas[name] = kernel.allocate_area(WORDS * 8, "df_ioctl")
            self.fill(area, words)
            df = self.objects[name] = kernel.allocate_type("struct kcov_dataflow")
            kernel.put(df, "struct kcov_dataflow", refcount=1, size=WORDS, area=area)
            self.files[name] = kernel.allocate_type("struct file")
            kernel.put(self.files[name], "struct file", f_op=self.operations, private_data=df)
            self.install("fuzz", fd, self.files[name])
        self.session(LOCAL, "local", self.areas["local"], WORDS, 0)
        kernel.put(self.objects["local"], "struct kcov_dataflow", refcount=2, t=kernel.tasks[LOCAL])
        scratch = self.areas["section"] = kernel.allocate_area(REMOTE_WORDS * 8, "kcov_df_remote_start")
        self.fill(scratch, argument(1, kernel.text + 0x80, 2, 3))
        self.session(WORKER, "remote", scratch, REMOTE_WORDS, 1)
        kernel.put(self.objects["remote"], "struct kcov_dataflow", refcount=2, remote_handle=HANDLE)
        self.table = kernel.add_symbol("kcov_df_remote_map", 16 * kernel.word)
        kernel.target.variables["kcov_df_remote_map"] = ("struct hlist_head", 16)
        self.entry = self.publish("remote", HANDLE, 3)
        self.pool = kernel.add_symbol("kcov_df_scratch_pool", 2 * kernel.word)
        self.free = [kernel.allocate_area(64, "kcov_df_remote_start") for _ in range(2)]
        kernel.link(self.pool, self.free)
        self.pool_count = kernel.add_symbol("kcov_df_scratch_pool_nr", kernel.word)
        kernel.write_word(self.pool_count, 2)

    def fill(self, area, words):
        for index, word in enumerate((len(words), *words)):
            self.kernel.write_word(area + 8 * index, word, 8)

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
        link = entry + kernel.offset("struct kcov_df_remote", "hnode")
        first = int.from_bytes(kernel.target.read(head, kernel.word), kernel.order)
        kernel.put(entry, "struct kcov_df_remote", handle=handle, df=self.objects[name], hnode__next=first, hnode__pprev=head)
        kernel.write_word(head, link)
        return entry

    def install(self, table, fd, file):
        """Open a file in a table that has room for it."""
        kernel = self.kernel
        embedded = kernel.tables[table] + kernel.offset("struct files_struct", "fdtab")

        def member(name):
            at = embedded + kernel.offset("struct fdtable", name)
            return int.from_bytes(kernel.target.read(at, kernel.word), kernel.order)

        bits = 8 * kernel.word
        word = member("open_fds") + fd // bits * kernel.word
        kernel.write_word(member("fd") + fd * kernel.word, file)
        kernel.write_word(word, int.from_bytes(kernel.target.read(word, kernel.word), kernel.order) | 1 << fd % bits)
