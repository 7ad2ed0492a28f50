"""The programs, read by an interpreter: every number, every rule, the bounds, the mutations."""

from __future__ import annotations

import dataclasses
import errno

import pyseccomp
import pytest

from launcher import bpf as assembler
from launcher import compiler, policy, syscalls
from launcher.policy_arguments import Rule
from tests.seccomp import bpf, cases
from tests.seccomp.cases import POLICIES, Policy

MACHINES = ("x86_64", "aarch64")
NATIVE = syscalls.MACHINE
ALLOW, KILL = 0x7FFF0000, 0x80000000
LAST = cases.LAST_NUMBER + 50

each_policy = pytest.mark.parametrize("chosen", POLICIES, ids=lambda p: p.name)

# Written from the specification, one policy a column: default, strict, strict without network.
EXPECTED = [
    ("read futex mmap exit_group rt_sigreturn rseq mseal map_shadow_stack", "allow allow allow"),
    ("openat statx sendfile splice copy_file_range fsetxattr", "allow allow allow"),
    ("vmsplice", "allow EPERM EPERM"),
    ("name_to_handle_at", "EOPNOTSUPP EOPNOTSUPP EOPNOTSUPP"),
    ("execve execveat wait4 pidfd_open prctl seccomp landlock_restrict_self", "allow allow allow"),
    ("sched_setaffinity sched_setattr sched_setscheduler sched_setparam", "allow EPERM EPERM"),
    ("pipe2 socketpair socket sendmsg recvmsg memfd_create", "allow allow allow"),
    ("connect bind listen accept accept4", "allow allow EPERM"),
    ("shmget semop msgsnd mq_open", "allow EPERM EPERM"),
    ("io_setup io_submit io_getevents", "allow ENOSYS ENOSYS"),
    ("clone3 openat2 io_uring_setup io_uring_enter io_uring_register", "ENOSYS ENOSYS ENOSYS"),
    ("userfaultfd keyctl add_key request_key memfd_secret", "ENOSYS ENOSYS ENOSYS"),
    ("statmount listmount listns quotactl_fd process_mrelease", "ENOSYS ENOSYS ENOSYS"),
    ("bpf", "ENOSYS kill kill"),
    ("chroot pidfd_getfd kcmp open_by_handle_at fanotify_init reboot", "EPERM EPERM EPERM"),
    ("swapon sethostname clock_settime syslog acct process_madvise", "EPERM EPERM EPERM"),
    ("mbind set_mempolicy migrate_pages move_pages", "EPERM EPERM EPERM"),
    ("mount umount2 move_mount open_tree open_tree_attr fsopen fsconfig", "EPERM kill kill"),
    ("fsmount fspick mount_setattr pivot_root setns perf_event_open", "EPERM kill kill"),
    ("ptrace process_vm_readv process_vm_writev", "EPERM kill kill"),
    ("kexec_load kexec_file_load init_module finit_module delete_module", "kill kill kill"),
]
X86_ONLY = [
    ("uretprobe uprobe arch_prctl open fork", "allow allow allow"),
    ("modify_ldt iopl ioperm", "EPERM EPERM EPERM"),
    ("uselib _sysctl create_module afs_syscall", "kill kill kill"),
]


def action(word: str) -> int:
    named = {"allow": ALLOW, "kill": KILL}
    return named[word] if word in named else 0x50000 | int(getattr(errno, word))


def assembled(machine: str, chosen: Policy) -> bytes:
    """The program for any machine; libseccomp compiles the table for the native one only."""
    if machine == NATIVE:
        return chosen.program
    numbers = {compiler.number_of(machine, name): a for name, a in chosen.verdicts.items()}
    decisions: assembler.Decisions = []
    for number in range(cases.LAST_NUMBER + 2):
        action = numbers.get(number, policy.DEFAULT_ACTION)
        if not decisions or decisions[-1][1] != action:
            decisions.append((number, action))
    return compiler.assemble(machine, decisions, chosen.rules)


@each_policy
@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_answers_what_the_table_declares(machine: str, chosen: Policy) -> None:
    program = assembled(machine, chosen)
    numbers = {compiler.number_of(machine, name): name for name in chosen.verdicts}
    for number in (*range(LAST + 1), 0x3FFFFFFF, 0x40000000, 0x40000027, 0x7FFFFFFF, 0xFFFFFFFF):
        name = numbers.get(number, "")
        if name in chosen.rules:
            continue
        expected = chosen.verdicts.get(name, 0x50000 | errno.ENOSYS)
        for words in ((0,) * 6, (2**64 - 1,) * 6, (1 << 32,) * 6):
            answer = bpf.run(program, machine, number, *words)
            assert answer.action == expected, f"{name} {number}"


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_libseccomp_can_name_is_in_a_group(machine: str) -> None:
    named = {compiler.number_of(machine, name) for group in policy.GROUPS for name in group.names}
    forgotten = []
    for number in range(cases.LAST_NUMBER + 1):
        try:
            name = pyseccomp.resolve_syscall(bpf.ARCH[machine], number)
        except ValueError:
            continue
        if number not in named:
            forgotten.append(name)
    assert forgotten == []


def test_no_call_is_in_two_groups() -> None:
    names = [name for group in policy.GROUPS for name in group.names]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(("names", "actions"), EXPECTED + X86_ONLY)
def test_the_specification_is_what_the_table_says(names: str, actions: str) -> None:
    columns = (Policy("", "default"), Policy("", "strict"), Policy("", "strict", network=False))
    for name in names.split():
        for chosen, word in zip(columns, actions.split(), strict=True):
            assert chosen.verdicts[name] == action(word), f"{name} {chosen}"


@pytest.mark.parametrize("name", ["debug", "numa"])
def test_a_relaxation_allows_what_it_names_and_nothing_else(name: str) -> None:
    for base in ("default", "strict"):
        plain = Policy("", base).verdicts
        relaxed = Policy("", base, relax=(name,)).verdicts
        changed = {call for call in plain if plain[call] != relaxed[call]}
        assert changed == set(policy.RELAXATIONS[name].allow)
        assert {relaxed[call] for call in changed} == {ALLOW}


@each_policy
@pytest.mark.parametrize("machine", MACHINES)
def test_each_argument_row_holds(machine: str, chosen: Policy) -> None:
    program = assembled(machine, chosen)
    for row in cases.rows_of(chosen):
        number = compiler.number_of(machine, row.call)
        if number is not None:
            answer = bpf.run(program, machine, number, *row.words)
            expected = 0x50000 | row.refused if row.refused else ALLOW
            assert answer.action == expected, row


@each_policy
def test_prctl_lets_through_the_listed_options_only(chosen: Policy) -> None:
    number = compiler.number_of(NATIVE, "prctl")
    assert number is not None
    listed = {*cases.PRCTL_ALLOWED, *cases.PRCTL_REFUSED}
    for option in (*range(300), *listed, *(o + 1 for o in listed), *(o - 1 for o in listed)):
        # 4 is allowed as third and as second argument of the two options that look at them
        answer = bpf.run(chosen.program, NATIVE, number, option | 1 << 40, 4, 4)
        expected = 0x50000 | (errno.EPERM if option in cases.PRCTL_REFUSED else errno.EINVAL)
        assert answer.action == (ALLOW if option in cases.PRCTL_ALLOWED else expected), option


@each_policy
def test_ioctl_lets_through_the_listed_commands_only(chosen: Policy) -> None:
    number = compiler.number_of(NATIVE, "ioctl")
    assert number is not None
    listed = {*cases.IOCTL_STRICT, *(cases.SIOCGIF if chosen.network else ())}
    for command in (*range(0x5300, 0x5800), *range(0x8900, 0x8A00), *listed):
        answer = bpf.run(chosen.program, NATIVE, number, 0, command)
        allowed = command in listed
        if chosen.base == "default":
            allowed = command not in {*cases.IOCTL_REFUSED, *range(0x5600, 0x5700)}
        assert (answer.action == ALLOW) == allowed, hex(command)


@each_policy
@pytest.mark.parametrize("machine", MACHINES)
def test_a_foreign_architecture_is_killed_whatever_it_calls(machine: str, chosen: Policy) -> None:
    program = assembled(machine, chosen)
    foreign = {0x40000003, 0x4000003E, 0x40000028, *bpf.ARCH.values()} - {bpf.ARCH[machine]}
    for arch in foreign:
        for number in (0, 39, 102, 0x40000027):
            assert bpf.run_arch(program, arch, number).action == KILL


@each_policy
@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_without_rules_reads_no_argument(machine: str, chosen: Policy) -> None:
    program = assembled(machine, chosen)
    for name in chosen.verdicts:
        number = compiler.number_of(machine, name)
        if number is not None and name not in chosen.rules:
            assert bpf.run(program, machine, number).reads <= bpf.NUMBER_AND_ARCH, name


HOT = {
    *("read", "write", "pread64", "pwrite64", "readv", "writev", "close", "lseek", "fcntl"),
    *("mmap", "munmap", "mprotect", "mremap", "madvise", "brk", "futex", "newfstatat", "fstat"),
    *("clock_gettime", "clock_nanosleep", "getrandom", "gettid", "getpid", "sched_yield"),
    *("epoll_pwait", "ppoll", "rt_sigprocmask", "recvfrom", "sendto", "recvmsg", "sendmsg"),
}


@each_policy
def test_the_hot_calls_have_no_rules(chosen: Policy) -> None:
    assert HOT.isdisjoint(chosen.rules)
    assert {chosen.verdicts[name] for name in HOT} == {ALLOW}


@each_policy
@pytest.mark.parametrize("machine", MACHINES)
def test_a_program_is_short_and_every_path_too(machine: str, chosen: Policy) -> None:
    program = assembled(machine, chosen)
    assert len(program) // 8 <= 400
    calls = [(n, ()) for name in chosen.verdicts if (n := compiler.number_of(machine, name))]
    rows = [(compiler.number_of(machine, r.call) or 0, r.words) for r in cases.rows_of(chosen)]
    paths = [bpf.run(program, machine, number, *words).steps for number, words in calls + rows]
    assert max(paths) <= 40


def _without_one_rule(chosen: Policy) -> list[tuple[str, dict[str, tuple[Rule, ...]]]]:
    mutants = []
    for call, rules in chosen.rules.items():
        for i, rule in enumerate(rules):
            rest = {**chosen.rules, call: (*rules[:i], *rules[i + 1 :])}
            mutants.append((f"{call} rule {i}", {k: v for k, v in rest.items() if v}))
            for j, r in enumerate(rule.require.ranges):
                kept = (*rule.require.ranges[:j], *rule.require.ranges[j + 1 :])
                require = dataclasses.replace(rule.require, ranges=kept)
                narrower = (
                    *rules[:i],
                    dataclasses.replace(rule, require=require),
                    *rules[i + 1 :],
                )
                mutants.append((f"{call} rule {i} without {r}", {**chosen.rules, call: narrower}))
            if rule.given is not None:
                always = (*rules[:i], dataclasses.replace(rule, given=None), *rules[i + 1 :])
                mutants.append((f"{call} rule {i} always", {**chosen.rules, call: always}))
    return mutants


def _every_case(chosen: Policy) -> list[tuple[str, tuple[int, ...], int]]:
    rows = [(r.call, r.words, r.refused) for r in cases.rows_of(chosen)]
    rows += [("prctl", (option, 4, 4), 0) for option in cases.PRCTL_ALLOWED]
    rows += [("prctl", (option,), errno.EPERM) for option in cases.PRCTL_REFUSED]
    return rows


@pytest.mark.parametrize("chosen", POLICIES[:4], ids=lambda p: p.name)
def test_taking_away_any_rule_or_value_is_noticed(chosen: Policy) -> None:
    survivors = []
    for name, rules in _without_one_rule(chosen):
        call = name.split()[0]
        number = compiler.number_of(NATIVE, call)
        assert number is not None
        mutant = {call: rules[call]} if call in rules else {}
        program = compiler.assemble(NATIVE, [(0, ALLOW)], mutant)
        wanted = [(w, 0x50000 | e if e else ALLOW) for c, w, e in _every_case(chosen) if c == call]
        if all(bpf.run(program, NATIVE, number, *w).action == a for w, a in wanted):
            survivors.append(name)
    assert survivors == []
