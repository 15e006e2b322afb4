# SPDX-License-Identifier: LGPL-2.1-or-later
"""The generations of KCOV, mainline and posted, with their structures as the source declares them (kcov-abi.md 2, 3, 5-8)."""

from dataclasses import dataclass, field, replace

MODES_1 = {"KCOV_MODE_DISABLED": 0, "KCOV_MODE_TRACE": 1}
MODES_2 = {"KCOV_MODE_DISABLED": 0, "KCOV_MODE_INIT": 1, "KCOV_MODE_TRACE_PC": 2, "KCOV_MODE_TRACE_CMP": 3}
MODES_7 = {**MODES_2, "KCOV_MODE_REMOTE": 4}
MODES_J = {
    "KCOV_MODE_DISABLED": 0,
    "KCOV_MODE_INIT": 1,
    "KCOV_MODE_TRACE_PC": 2,
    "KCOV_MODE_TRACE_CMP": 4,
    "KCOV_MODE_REMOTE": 8,
    "KCOV_MODE_TRACE_UNIQ_PC": 16,
    "KCOV_MODE_TRACE_UNIQ_EDGE": 32,
    "KCOV_MODE_TRACE_UNIQ_CMP": 64,
}
# The kernel's own, as far as a walk over tasks and files needs it.
COMMON = """
struct list_head { struct list_head *next; struct list_head *prev; };
struct hlist_node { struct hlist_node *next; struct hlist_node **pprev; };
struct hlist_head { struct hlist_node *first; };
atomic_t { int counter; };
refcount_t { atomic_t refs; };
spinlock_t { unsigned int rlock; };
local_lock_t { };
struct thread_info { unsigned long flags; u32 status; u32 cpu; };
struct signal_struct { int sigcnt; int live; struct list_head thread_head; };
struct fdtable { unsigned int max_fds; struct file **fd; unsigned long *close_on_exec; unsigned long *open_fds; };
struct files_struct { int count; bool resize_in_progress; struct fdtable *fdt; struct fdtable fdtab; };
struct file { u64 f_mode; struct file_operations *f_op; void *private_data; };
struct rq { unsigned int nr_running; struct task_struct *curr; struct task_struct *idle; };
"""
TASK = """
struct task_struct {{
    {first} unsigned int __state; void *stack; unsigned int flags; {on_cpu} struct list_head tasks; struct mm_struct *mm;
    int pid; int tgid; struct list_head thread_node; char comm[16]; struct files_struct *files; struct signal_struct *signal;
    {kcov} void *last;
}};
"""
TASK_1 = "enum kcov_mode kcov_mode; unsigned int kcov_size; void *kcov_area; struct kcov *kcov;"
TASK_2 = TASK_1.replace("enum kcov_mode kcov_mode", "unsigned int kcov_mode")
TASK_3 = TASK_2 + "u64 kcov_handle; int kcov_sequence;"
TASK_4 = TASK_3 + "unsigned int kcov_softirq;"
OWNER = ("struct kcov *kcov;", "struct kcov *kcov; struct kcov *kcov_remote;")
SAVED = (
    "unsigned int kcov_saved_mode; unsigned int kcov_saved_size; void *kcov_saved_area; struct kcov *kcov_saved_kcov;"
    "int kcov_saved_sequence;"
)


def kcov_1(count, more=""):
    return (
        f"struct kcov {{ {count}; spinlock_t lock; enum kcov_mode mode; unsigned int size; void *area; struct task_struct *t;"
        f"{more} }};"
    )


def kcov_3(more=""):
    return kcov_1("refcount_t refcount", f"bool remote; unsigned int remote_size; int sequence; {more}")


def percpu(lock="local_lock_t lock;", more=""):
    return (
        f"struct kcov_percpu_data {{ void *irq_area; {lock} unsigned int saved_mode; unsigned int saved_size; void *saved_area;"
        f"struct kcov *saved_kcov; int saved_sequence; {more} }};"
    )


REMOTE = """
struct kcov_remote { u64 handle; struct kcov *kcov; struct hlist_node hnode; };
struct kcov_remote_area { struct list_head list; unsigned int size; };
"""
PERCPU_9 = "struct kcov_percpu_data { local_lock_t lock; };"


@dataclass(frozen=True)
class Row:
    """A generation: what its structures are and how it uses them."""

    name: str
    era: str
    task: str
    kcov: str
    modes: dict[str, int]
    percpu: str = ""
    more: str = ""
    """Other structures."""
    variants: tuple[str, ...] = ()
    """What the names of its variants begin with."""
    cpu: str = "thread_info"
    """Where a task's CPU is: in its thread_info, in the task itself (v4.9 to v5.15), or at the stack's base."""
    kernel_words: int = 0
    """Bytes of a buffer's word where it isn't the kernel's."""
    late_area: bool = False
    """Up to v5.17 a buffer exists only once it is mapped."""
    owner: str = "kcov"
    """How the owner of a KCOV_REMOTE_ENABLE is marked: ``kcov`` (no mode), ``mode`` or ``member``."""
    saved: str = ""
    """Where interrupted sessions are kept: ``cpu`` or ``task``."""
    special: tuple[tuple[str, int], ...] = ()
    """Modes of its own: (what a task in it is called, mode)."""
    paths: dict[str, str] = field(default_factory=dict)
    """Members that have another path: of a task's or an object's size, area, sequence, mode and saved ones."""

    @property
    def has_trace(self):
        """Whether a buffer may have a bitmap before its trace."""
        return "trace_size" in self.more

    @property
    def has_device(self):
        return "struct kcov_df_remote" in self.more

    @property
    def has_remote(self):
        return "struct kcov_remote " in self.more

    @property
    def has_comparisons(self):
        return any(name.endswith("TRACE_CMP") for name in self.modes)

    @property
    def trace(self):
        """The mode that every generation has."""
        return next(name for name in self.modes if name.upper() in ("KCOV_MODE_TRACE", "KCOV_MODE_TRACE_PC"))

    @property
    def init(self):
        """Of an object that isn't enabled."""
        return next((name for name in self.modes if name in ("KCOV_MODE_INIT", "KCOV_MODE_INIT_TRACE")), self.trace)


E0 = Row(
    "E0",
    "E0",
    TASK_1,
    kcov_1("atomic_t rc"),
    {"kcov_mode_trace": 1},
    cpu="stack",
    kernel_words=4,
    late_area=True,
)
E1 = Row("E1", "E1", TASK_1, kcov_1("atomic_t refcount"), MODES_1, cpu="stack", late_area=True)
E2_ENUM = replace(E1, name="E2 up to v4.17", era="E2", modes=MODES_2, cpu="task")
E2 = replace(E2_ENUM, name="E2", task=TASK_2, kcov=kcov_1("refcount_t refcount"))
E3 = replace(E2, name="E3", era="E3", task=TASK_3, kcov=kcov_3(), more=REMOTE)
E4 = replace(E3, name="E4", era="E4", task=TASK_4, percpu=percpu(lock=""), saved="cpu")
E5 = replace(E4, name="E5", era="E5-E6", percpu=percpu(), cpu="thread_info")
E6 = replace(E5, name="E6", late_area=False)
E7 = replace(E6, name="E7", era="E7", modes=MODES_7, owner="mode")
E8 = replace(E6, name="E8", era="E8", task=TASK_4.replace(*OWNER), owner="member")
E9A = replace(E7, name="E9a", era="E9a", task=TASK_4 + SAVED, percpu=PERCPU_9, saved="task")
E9B = replace(E9A, name="E9b", era="E9b", modes=MODES_2, task=TASK_4.replace(*OWNER) + SAVED, owner="member")

J = replace(
    E7,
    name="J",
    kcov=kcov_3()
    .replace("unsigned int size;", "unsigned int size; unsigned long prev_pc;")
    .replace("void *area;", "void *area; struct kcov_map *map; struct kcov_map *map_edge;"),
    more=REMOTE
    + "struct kcov_entry { unsigned long ent; unsigned long type; unsigned long arg1; unsigned long arg2;"
    + " struct hlist_node node; };"
    + "struct kcov_map { struct hlist_head buckets[32768]; struct gen_pool *pool; void *mem; void *area; };",
    modes=MODES_J,
    variants=("UNIQ_PC",),
    special=(("uniq", 16), ("edges", 32), ("both", 48), ("uniq-cmp", 64)),
)
STATE = (
    "unsigned int size; void *area; unsigned int trace_size; unsigned long *trace; unsigned int bitmap_size;"
    "unsigned long *bitmap; int sequence;"
)
KCOV_P = (
    "struct kcov { refcount_t refcount; spinlock_t lock; enum kcov_mode mode; struct kcov_state state; struct task_struct *t;"
    "bool remote; unsigned int remote_size; };"
)
PERCPU_P = (
    "struct kcov_percpu_data { void *irq_area; local_lock_t lock; enum kcov_mode saved_mode; struct kcov *saved_kcov;"
    "struct kcov_state saved_state; };"
)
FLAT = {"task": "kcov_state.", "kcov": "state.", "saved": "saved_state."}
P2 = replace(
    E7,
    name="P2-P4",
    task="unsigned int kcov_mode; struct kcov_state kcov_state; struct kcov *kcov; u64 kcov_handle; unsigned int kcov_softirq;",
    kcov=KCOV_P,
    percpu=PERCPU_P,
    more=REMOTE + f"struct kcov_state {{ {STATE} }};",
    modes={"KCOV_MODE_INVALID": -1, **MODES_7, "KCOV_MODE_UNIQUE_PC": 5},
    variants=("KCOV_UNIQUE_ENABLE v2-v4",),
    special=(("unique", 5),),
    paths=FLAT,
)
P1 = replace(
    P2,
    name="P1",
    task="struct kcov_state kcov_state; struct kcov *kcov; u64 kcov_handle; unsigned int kcov_softirq;",
    kcov=KCOV_P.replace("enum kcov_mode mode; ", ""),
    more=REMOTE + f"struct kcov_state_s {{ {STATE} }}; struct kcov_state {{ unsigned int mode; struct kcov_state_s s; }};",
    modes={"KCOV_MODE_INVALID": -1, **MODES_7, "KCOV_MODE_TRACE_UNIQUE_PC": 5},
    variants=("KCOV_UNIQUE_ENABLE v1",),
    paths={
        "task": "kcov_state.s.",
        "kcov": "state.s.",
        "saved": "saved_state.s.",
        "task mode": "kcov_state.mode",
        "kcov mode": "state.mode",
    },
)
# The third patch of that series alone: size, area and sequence moved, nothing else.
P_STATE = replace(
    P2,
    name="P state",
    more=REMOTE + "struct kcov_state { unsigned int size; void *area; int sequence; };",
    modes=MODES_7,
    variants=("struct kcov_state without",),
    special=(),
)
X1 = replace(
    E7,
    name="X1",
    task=TASK_3 + "unsigned int kcov_softirq : 1; unsigned int kcov_ext_format : 1;",
    kcov=kcov_3("unsigned int kcov_ext_format : 1;"),
    percpu=percpu(more="unsigned int saved_kcov_ext_format : 1;"),
    variants=("KCOV_TRACE_PC_EXT",),
    special=(("ext", 2),),
)
D1 = replace(
    E8,
    name="D1",
    task=E8.task + "u32 kcov_dataflow_seq; unsigned int kcov_df_size; void *kcov_df_area; bool kcov_df_enabled;",
    more=E8.more
    + "struct kcov_dataflow { int refcount; unsigned int lock; unsigned int size; void *area; struct task_struct *t; };",
    variants=("kcov_dataflow in kcov.c",),
)
D2 = replace(
    E9B,
    name="D2",
    task=E9B.task
    + "void *kcov_df_area; unsigned int kcov_df_size; u32 kcov_df_seq; bool kcov_df_enabled; struct kcov_dataflow *kcov_df;"
    "unsigned int kcov_df_remote_depth;",
    more=E9B.more
    + "struct kcov_dataflow { unsigned long lock; unsigned int size; void *area; struct task_struct *t; int refcount;"
    " u64 remote_handle; };"
    "struct kcov_df_remote { u64 handle; struct kcov_dataflow *df; struct hlist_node hnode; };",
    variants=("kcov_dataflow in its own file",),
)
K = replace(E9B, name="K", special=(("paused", 1 << 29 | 2),))

ROWS = (E0, E1, E2_ENUM, E2, E3, E4, E5, E6, E7, E8, E9A, E9B, J, P1, P2, P_STATE, X1, D1, D2, K)
