# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of system calls by number, and how many arguments they take.

Sources: arch/x86/entry/syscalls/syscall_64.tbl for x86-64, and include/uapi/asm-generic/unistd.h for newer architectures.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from typing import Final

# A number, and the names of the calls from that number on.
_X86_64: Final = """
0: read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn ioctl
pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise shmget shmat shmctl dup dup2 pause
nanosleep getitimer alarm setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind
listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork execve exit wait4 kill uname semget semop
semctl shmdt msgget msgsnd msgrcv msgctl fcntl flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename
mkdir rmdir creat link unlink symlink readlink chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage
sysinfo times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid getppid getpgrp setsid setreuid setregid
getgroups setgroups setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending
rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs sysfs
getpriority setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max
sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall vhangup modify_ldt pivot_root _sysctl prctl
arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2 swapon swapoff reboot sethostname setdomainname
iopl ioperm create_module init_module delete_module get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg
afs_syscall tuxcall security gettid readahead setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr
flistxattr removexattr lremovexattr fremovexattr tkill time futex sched_setaffinity sched_getaffinity set_thread_area
io_setup io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie epoll_create epoll_ctl_old
epoll_wait_old remap_file_pages getdents64 set_tid_address restart_syscall semtimedop fadvise64 timer_create timer_settime
timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres clock_nanosleep exit_group epoll_wait
epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify
mq_getsetattr kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get inotify_init inotify_add_watch
inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat futimesat newfstatat unlinkat renameat linkat symlinkat
readlinkat fchmodat faccessat pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice
move_pages utimensat epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4
eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init
fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu process_vm_readv
process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create kexec_file_load bpf
execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx
io_pgetevents rseq
"""
_GENERIC: Final = """
0: io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr
llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie eventfd2 epoll_create1 epoll_ctl
epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch inotify_rm_watch ioctl ioprio_set ioprio_get flock mknodat
mkdirat unlinkat symlinkat linkat renameat umount2 mount pivot_root nfsservctl statfs fstatfs truncate ftruncate fallocate
faccessat chdir fchdir chroot fchmod fchmodat fchownat fchown openat close vhangup pipe2 quotactl getdents64 lseek read
write readv writev pread64 pwrite64 preadv pwritev sendfile pselect6 ppoll signalfd4 vmsplice splice tee readlinkat
newfstatat fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime timerfd_gettime utimensat acct capget
capset personality exit exit_group waitid set_tid_address unshare futex set_robust_list get_robust_list nanosleep getitimer
setitimer kexec_load init_module delete_module timer_create timer_gettime timer_getoverrun timer_settime timer_delete
clock_settime clock_gettime clock_getres clock_nanosleep syslog ptrace sched_setparam sched_setscheduler sched_getscheduler
sched_getparam sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max sched_get_priority_min
sched_rr_get_interval restart_syscall kill tkill tgkill sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask rt_sigpending
rt_sigtimedwait rt_sigqueueinfo rt_sigreturn setpriority getpriority reboot setregid setgid setreuid setuid setresuid
getresuid setresgid getresgid setfsuid setfsgid times setpgid getpgid getsid setsid getgroups setgroups uname sethostname
setdomainname getrlimit setrlimit getrusage umask prctl getcpu gettimeofday settimeofday adjtimex getpid getppid getuid
geteuid getgid getegid gettid sysinfo mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl
msgrcv msgsnd semget semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair bind listen accept connect
getsockname getpeername sendto recvfrom setsockopt getsockopt shutdown sendmsg recvmsg readahead brk munmap mremap add_key
request_key keyctl clone execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock mlockall munlockall mincore
madvise remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages move_pages rt_tgsigqueueinfo perf_event_open
accept4 recvmmsg
260: wait4 prlimit64 fanotify_init fanotify_mark
266: clock_adjtime syncfs setns sendmmsg process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr
renameat2 seccomp getrandom memfd_create bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2
pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq kexec_file_load
"""
# Since v5.1 a call has the same number everywhere.
_NEWER: Final = """
424: pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount fspick
pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr quotactl_fd
landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret process_mrelease futex_waitv
set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount
lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat open_tree_attr
"""
_TABLES: Final = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC, "loongarch64": _GENERIC}

# include/linux/syscalls.h: a number of arguments, and the calls that take so many.
_ARGUMENTS: Final = """
0: fork getegid geteuid getgid getpgrp getpid getppid gettid getuid inotify_init munlockall pause restart_syscall
rt_sigreturn sched_yield setsid sync vfork vhangup
1: acct adjtimex alarm brk chdir chroot close dup epoll_create epoll_create1 eventfd exit exit_group fchdir fdatasync fsync
getpgid getsid inotify_init1 io_destroy memfd_secret mlockall mq_unlink personality pipe pkey_free rmdir
sched_get_priority_max sched_get_priority_min sched_getscheduler set_tid_address setfsgid setfsuid setgid setuid shmdt
swapoff syncfs sysinfo time timer_delete timer_getoverrun times umask uname unlink unshare uselib userfaultfd
2: access arch_prctl capget capset chmod clock_adjtime clock_getres clock_gettime clock_settime clone3 creat delete_module
dup2 eventfd2 fanotify_init fchmod flock fremovexattr fsopen fstat fstatfs ftruncate getcwd getgroups getitimer getpriority
getrlimit getrusage gettimeofday inotify_rm_watch io_setup io_uring_setup ioprio_get kill landlock_restrict_self link listen
lremovexattr lstat memfd_create mkdir mlock mq_notify msgget munlock munmap nanosleep pidfd_open pipe2 pivot_root pkey_alloc
process_mrelease removexattr rename rt_sigpending rt_sigsuspend sched_getparam sched_rr_get_interval sched_setparam
set_robust_list setdomainname setgroups sethostname setns setpgid setregid setreuid setrlimit settimeofday shutdown
sigaltstack stat statfs swapon symlink timer_gettime timerfd_create timerfd_gettime tkill truncate umount2 ustat utime
utimes
3: accept bind bpf chown close_range connect dup3 execve faccessat fchmodat fchown fcntl finit_module flistxattr fsmount
fspick futimesat get_robust_list getcpu getdents getdents64 getpeername getrandom getresgid getresuid getsockname
init_module inotify_add_watch io_cancel io_submit ioctl ioperm ioprio_set landlock_create_ruleset lchown listxattr
llistxattr lseek lsm_list_modules madvise map_shadow_stack membarrier mincore mkdirat mknod mlock2 mprotect mq_getsetattr
mseal msgctl msync open open_by_handle_at open_tree pidfd_getfd poll read readahead readlink readv recvmsg rt_sigqueueinfo
sched_getaffinity sched_setaffinity sched_setattr sched_setscheduler seccomp semget semop sendmsg set_mempolicy setitimer
setpriority setresgid setresuid shmat shmctl shmget signalfd socket symlinkat sysfs syslog tgkill timer_create unlinkat
write writev
4: accept4 cachestat clock_nanosleep epoll_ctl epoll_wait faccessat2 fadvise64 fallocate fchmodat2 fgetxattr futex_requeue
futex_wake getxattr io_uring_register kexec_load landlock_add_rule lgetxattr listmount lsm_get_self_attr lsm_set_self_attr
migrate_pages mknodat mq_open msgsnd newfstatat openat openat2 pidfd_send_signal pkey_mprotect pread64 prlimit64 ptrace
pwrite64 quotactl quotactl_fd readlinkat reboot renameat request_key rseq rt_sigaction rt_sigprocmask rt_sigtimedwait
rt_tgsigqueueinfo sched_getattr semctl semtimedop sendfile sendmmsg set_mempolicy_home_node signalfd4 socketpair statmount
sync_file_range tee timer_settime timerfd_settime utimensat vmsplice wait4
5: add_key clone execveat fchownat fsconfig fsetxattr futex_waitv get_mempolicy getsockopt io_getevents kcmp kexec_file_load
keyctl linkat lsetxattr mount mount_setattr move_mount mq_timedreceive mq_timedsend mremap msgrcv name_to_handle_at
perf_event_open ppoll prctl preadv process_madvise pwritev recvmmsg remap_file_pages renameat2 select setsockopt setxattr
statx waitid
6: copy_file_range epoll_pwait epoll_pwait2 fanotify_mark futex futex_wait io_pgetevents io_uring_enter mbind mmap
move_pages preadv2 process_vm_readv process_vm_writev pselect6 pwritev2 recvfrom sendto splice
"""


@cache
def _argument_counts() -> Mapping[str, int]:
    counts: dict[str, int] = {}
    number = 0
    for word in _ARGUMENTS.split():
        if word.endswith(":"):
            number = int(word[:-1])
        else:
            counts[word] = number
    return counts


@cache
def _table(machine: str) -> Mapping[int, str]:
    names: dict[int, str] = {}
    number = 0
    for word in (_TABLES[machine] + _NEWER).split() if machine in _TABLES else ():
        if word.endswith(":"):
            number = int(word[:-1])
        else:
            names[number] = word
            number += 1
    return names


def syscall_name(number: int, machine: str | None = None) -> str:
    """Return the name of a system call; ``syscall_467`` for one without a name here.

    :param machine: as in ``uname -m``; this machine's by default.
    """
    return _table(platform.machine() if machine is None else machine).get(number, f"syscall_{number}")


def argument_count(name: str) -> int:
    """Return the number of a system call's arguments; 6, the maximum, for an unknown one."""
    return _argument_counts().get(name, 6)
