"""Which system calls does a sandboxed command have, and what do the others answer?

Every system call of x86-64 and aarch64 up to number 470 (Linux 6.18) is named here once. A number
that is not named answers ENOSYS, as on a kernel that does not have it. Why a call answers what:

* ENOSYS where well-behaved programs probe and fall back (clone3(2), io_uring(7), openat2(2)),
* EPERM where an ordinary user would be refused too (mount(2), setns(2)),
* the end of the process where no legitimate program goes (kexec_load(2)); the policy ``strict``
  ends it for the tools of an escape as well (mount(2), ptrace(2), bpf(2)).

What the arguments must be is in `launcher.policy_arguments`. This module is data only.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher import policy_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.policy_arguments import Rule

ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW, <linux/seccomp.h>
KILL_PROCESS = 0x80000000  # not KILL_THREAD or TRAP: a handler of SIGSYS must not run (S20)


def refuse(code: int) -> int:
    """SECCOMP_RET_ERRNO: the call fails with ``code`` and does not reach the kernel."""
    return 0x00050000 | code


ENOSYS = refuse(errno.ENOSYS)
EPERM = refuse(errno.EPERM)

DEFAULT_ACTION = ENOSYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """System calls that answer alike. ``offline`` is for ``strict`` without a network."""

    names: tuple[str, ...]
    default: int
    strict: int
    offline: int | None = None


def _group(names: str, default: int, strict: int | None = None) -> Group:
    both = default if strict is None else strict
    return Group(names=tuple(names.split()), default=default, strict=both)


# A. The core: without one of these programs crash at random (S15, S16).
_CORE = _group(
    """
    read write pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 close close_range
    lseek dup dup2 dup3 fstat newfstatat statx stat lstat poll ppoll select pselect6
    epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2
    mmap munmap mprotect mremap madvise brk msync mincore mseal membarrier map_shadow_stack
    mlock mlock2 mlockall munlock munlockall remap_file_pages
    pkey_mprotect pkey_alloc pkey_free
    futex futex_wait futex_wake futex_requeue futex_waitv set_robust_list get_robust_list rseq
    set_tid_address rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait
    rt_sigsuspend sigaltstack restart_syscall exit exit_group
    gettid getpid getppid getuid geteuid getgid getegid getresuid getresgid getgroups
    getrandom clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time
    sched_yield getcpu uname sysinfo arch_prctl uretprobe uprobe
    """,
    ALLOW,
)

# B. Files.
_FILES = _group(
    """
    open openat creat access faccessat faccessat2 readlink readlinkat getdents getdents64 getcwd
    chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat
    symlink symlinkat mknod mknodat truncate ftruncate fallocate fsync fdatasync sync_file_range
    sync syncfs sendfile copy_file_range splice tee
    setxattr lsetxattr fsetxattr setxattrat getxattr lgetxattr fgetxattr getxattrat
    listxattr llistxattr flistxattr listxattrat removexattr lremovexattr fremovexattr removexattrat
    utime utimes futimesat utimensat umask chmod fchmod fchmodat fchmodat2
    chown fchown lchown fchownat statfs fstatfs fadvise64 readahead flock fcntl ioctl
    inotify_init inotify_init1 inotify_add_watch inotify_rm_watch cachestat
    """,
    ALLOW,
)
_PAGE_CACHE = _group("vmsplice", ALLOW, EPERM)
# What a file system without handles answers; glibc and systemd expect it.
_HANDLES = _group("name_to_handle_at", refuse(errno.EOPNOTSUPP))

# C. Processes.
_PROCESSES = _group(
    """
    clone unshare fork vfork execve execveat wait4 waitid kill tkill tgkill rt_sigqueueinfo
    rt_tgsigqueueinfo pidfd_open pidfd_send_signal setpgid getpgid getpgrp setsid getsid
    prctl prlimit64 getrlimit setrlimit getrusage times getpriority setpriority
    ioprio_get ioprio_set sched_getaffinity sched_getscheduler sched_getparam sched_getattr
    sched_get_priority_max sched_get_priority_min sched_rr_get_interval
    capget capset setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups
    seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self personality
    getitimer setitimer alarm timer_create timer_settime timer_gettime timer_getoverrun
    timer_delete timerfd_create timerfd_settime timerfd_gettime signalfd signalfd4 pause
    """,
    ALLOW,
)
_SCHEDULING = _group(
    "sched_setaffinity sched_setscheduler sched_setparam sched_setattr", ALLOW, EPERM
)

# D. Communication.
_IPC = _group(
    """
    pipe pipe2 memfd_create socketpair socket sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg
    getsockopt setsockopt getsockname getpeername shutdown
    """,
    ALLOW,
)
# The calls that make, await or accept a connection. Those above them stay without a network
# too: a descriptor of socketpair(2) is spoken to with sendmsg(2).
_NETWORK = Group(
    names=("connect", "bind", "listen", "accept", "accept4"),
    default=ALLOW,
    strict=ALLOW,
    offline=EPERM,
)
_SYSTEM_V = _group(
    """
    shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl
    mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
    """,
    ALLOW,
    EPERM,
)

# E. Asynchronous I/O of aio(7)'s predecessor.
_AIO = _group("io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents", ALLOW, ENOSYS)

# F. Programs probe for these and do without. clone3(2) and openat2(2) keep flags and mode behind
# a pointer, where no filter sees them (S06, W02); io_uring(7) runs calls past the filter (S09).
_PROBED = _group(
    """
    clone3 openat2 io_uring_setup io_uring_enter io_uring_register userfaultfd
    keyctl add_key request_key memfd_secret statmount listmount listns
    lsm_get_self_attr lsm_set_self_attr lsm_list_modules quotactl_fd process_mrelease fanotify_mark
    file_getattr file_setattr ustat sysfs set_thread_area get_thread_area
    epoll_ctl_old epoll_wait_old
    """,
    ENOSYS,
)
_EBPF = _group("bpf", ENOSYS, KILL_PROCESS)

# G. Privileges.
_PRIVILEGED = _group(
    """
    chroot process_madvise pidfd_getfd kcmp open_by_handle_at fanotify_init
    swapon swapoff reboot sethostname setdomainname settimeofday clock_settime adjtimex
    clock_adjtime acct quotactl syslog vhangup modify_ldt iopl ioperm nfsservctl lookup_dcookie
    """,
    EPERM,
)
_NUMA = _group(
    """
    mbind set_mempolicy get_mempolicy set_mempolicy_home_node migrate_pages move_pages
    """,
    EPERM,
)
_ESCAPING = _group(
    """
    mount umount2 move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick
    mount_setattr pivot_root setns perf_event_open
    """,
    EPERM,
    KILL_PROCESS,
)
_TRACING = _group("ptrace process_vm_readv process_vm_writev", EPERM, KILL_PROCESS)

# H. Never legitimate.
_KERNEL = _group(
    """
    kexec_load kexec_file_load init_module finit_module delete_module create_module
    get_kernel_syms query_module _sysctl uselib afs_syscall tuxcall security vserver
    getpmsg putpmsg
    """,
    KILL_PROCESS,
)

GROUPS = (
    *(_CORE, _FILES, _PAGE_CACHE, _HANDLES, _PROCESSES, _SCHEDULING, _IPC, _NETWORK, _SYSTEM_V),
    *(_AIO, _PROBED, _EBPF, _PRIVILEGED, _NUMA, _ESCAPING, _TRACING, _KERNEL),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """A named weakening: ``allow`` pass the table, ``rules`` replace those of the policy."""

    summary: str
    allow: tuple[str, ...]
    rules: Mapping[str, tuple[Rule, ...]]


RELAXATIONS: dict[str, Relaxation] = {
    "debug": Relaxation(
        summary="a debugger may trace the command's other processes",
        allow=_TRACING.names,
        rules=policy_arguments.DEBUG,
    ),
    "numa": Relaxation(
        summary="memory policies may be set and pages moved between nodes",
        allow=_NUMA.names,
        rules={},
    ),
}

# Of <asm/unistd.h>: the calls that libseccomp 2.5.4 cannot name. From 424 on, numbers are the
# same on every architecture.
_NUMBERS = {
    "cachestat": 451,
    "fchmodat2": 452,
    "map_shadow_stack": 453,
    "futex_wake": 454,
    "futex_wait": 455,
    "futex_requeue": 456,
    "statmount": 457,
    "listmount": 458,
    "lsm_get_self_attr": 459,
    "lsm_set_self_attr": 460,
    "lsm_list_modules": 461,
    "mseal": 462,
    "setxattrat": 463,
    "getxattrat": 464,
    "listxattrat": 465,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_getattr": 468,
    "file_setattr": 469,
    "listns": 470,
}
_ABSENT = -1
NUMBERS = {
    "x86_64": _NUMBERS | {"uretprobe": 335, "uprobe": 336},
    "aarch64": _NUMBERS | {"uretprobe": _ABSENT, "uprobe": _ABSENT},
}
