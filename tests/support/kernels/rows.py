# SPDX-License-Identifier: LGPL-2.1-or-later
"""The generations of KCOV, mainline and posted: generations.ini has them."""

from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ini_tables import read_table

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


@dataclass(frozen=True)
class Row:
    """A generation: what its structures are and how it uses them."""

    name: str
    era: str
    task: str
    """The KCOV members of a task."""
    kcov: str
    modes: dict[str, int]
    percpu: str = ""
    more: str = ""
    """Other structures."""
    variants: tuple[str, ...] = ()
    """What the names of its variants begin with."""
    cpu: str = "thread_info"
    """Where a task's CPU is: in its thread_info, in the task itself (v4.9 to v5.15), or at the
    stack's base.
    """
    kernel_words: int = 0
    """Bytes of a buffer's word where it isn't the kernel's."""
    late_area: bool = False
    """Up to v5.17 a buffer exists only once it is mapped."""
    owner: str = "kcov"
    """How the owner of a KCOV_REMOTE_ENABLE is marked: ``kcov`` (no mode), ``mode`` or ``member``.
    """
    saved: str = ""
    """Where interrupted sessions are kept: ``cpu`` or ``task``."""
    special: dict[str, int] = field(default_factory=dict)
    """Modes of its own, by what a task in it is called."""
    paths: dict[str, str] = field(default_factory=dict)
    """Members that have another path: of a task's or an object's size, area, sequence, mode and
    saved ones.
    """
    macros: dict[str, int] = field(default_factory=dict)
    """Modes that are no enumerators; of X1, with a member beside the number."""
    names: dict[str, int] = field(default_factory=dict)
    """Enumerators of user space's modes."""

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
        return next(
            name for name in self.modes if name.upper() in ("KCOV_MODE_TRACE", "KCOV_MODE_TRACE_PC")
        )

    @property
    def init(self):
        """Of an object that isn't enabled."""
        return next(
            (name for name in self.modes if name in ("KCOV_MODE_INIT", "KCOV_MODE_INIT_TRACE")),
            self.trace,
        )


_TABLE = read_table(Row, Path(__file__).with_name("generations.ini"))
ROWS = tuple(_TABLE.values())
E0, E1, E2_ENUM, E2, E3 = (_TABLE[name] for name in ("E0", "E1", "E2 up to v4.17", "E2", "E3"))
E4, E5, E6, E7, E8, E9A, E9B = (
    _TABLE[name] for name in ("E4", "E5", "E6", "E7", "E8", "E9a", "E9b")
)
J, P1, P2, P_STATE, X1, X2 = (_TABLE[name] for name in ("J", "P1", "P2-P4", "P state", "X1", "X2"))
D_EARLY, D2, K = (_TABLE[name] for name in ("D_EARLY", "D2", "K"))
