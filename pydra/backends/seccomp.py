"""Compiles seccomp profiles to the filter of a backend's process.

A profile has the format that a pod's `localhostProfile` has with containerd: the object `linux.seccomp` of the OCI
runtime specification (config-linux.md, "Seccomp"). libseccomp compiles it, as it does for runc and crun, and rules mean
what they mean there.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pydra.errors import SettingsError
from pydra.settings import SeccompProfile

MAX_PROFILE = 1 << 20
"""Bytes of a profile's file. Those of container runtimes have 15,000."""

_LIBRARY = "libseccomp.so.2"
_UNKNOWN = -1
"""What libseccomp answers for a system call that it does not know (`__NR_SCMP_ERROR`)."""

_ErrorNumber = Annotated[int, Meta(ge=1, le=4095)]
_Word = Annotated[int, Meta(ge=0)]


class Action(Enum):
    """What happens to a system call, without those that need a tracer or a listener beside the process."""

    KILL = "SCMP_ACT_KILL"
    KILL_THREAD = "SCMP_ACT_KILL_THREAD"
    KILL_PROCESS = "SCMP_ACT_KILL_PROCESS"
    TRAP = "SCMP_ACT_TRAP"
    ERRNO = "SCMP_ACT_ERRNO"
    LOG = "SCMP_ACT_LOG"
    ALLOW = "SCMP_ACT_ALLOW"


class Operator(Enum):
    """How an argument of a system call is compared."""

    NE = "SCMP_CMP_NE"
    LT = "SCMP_CMP_LT"
    LE = "SCMP_CMP_LE"
    EQ = "SCMP_CMP_EQ"
    GE = "SCMP_CMP_GE"
    GT = "SCMP_CMP_GT"
    MASKED_EQ = "SCMP_CMP_MASKED_EQ"


_ACTIONS = {  # include/linux/seccomp.h
    Action.KILL: 0,
    Action.KILL_THREAD: 0,
    Action.KILL_PROCESS: 0x80000000,
    Action.TRAP: 0x00030000,
    Action.ERRNO: 0x00050000,
    Action.LOG: 0x7FFC0000,
    Action.ALLOW: 0x7FFF0000,
}
_OPERATORS = {operator: number for number, operator in enumerate(Operator, 1)}  # `enum scmp_compare`


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What a runtime would ignore here is refused: it may be what makes the profile strict."""


class Condition(_Strict, frozen=True, kw_only=True):
    """On the argument `index`; with MASKED_EQ `value` is the mask, and `value_two` what must be left."""

    index: Annotated[int, Meta(ge=0, le=5)]
    value: _Word
    value_two: _Word = 0
    op: Operator

    def __post_init__(self) -> None:
        if max(self.value, self.value_two) >= 2**64:
            raise ValueError("value and valueTwo must be less than 2**64")


class Rule(_Strict, frozen=True, kw_only=True):
    """What happens to these system calls under all conditions; if several are on one argument, under any of them."""

    names: Annotated[tuple[str, ...], Meta(min_length=1)]
    action: Action
    errno_ret: _ErrorNumber | None = None
    args: tuple[Condition, ...] | None = ()


class Profile(_Strict, frozen=True, kw_only=True):
    """What happens to each system call. `architectures` are those beside the machine's own."""

    default_action: Action
    default_errno_ret: _ErrorNumber | None = None
    architectures: tuple[str, ...] | None = ()
    syscalls: tuple[Rule, ...] | None = ()


_REFUSED = (
    # namespaces and mounts
    *("unshare", "setns", "mount", "umount", "umount2", "pivot_root", "mount_setattr", "move_mount", "open_tree"),
    *("open_tree_attr", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("quotactl", "quotactl_fd", "swapon", "swapoff"),
    # the kernel: modules, programs in it, its clock, its log, the machine's end
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "bpf"),
    *("perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "fanotify_init"),
    *("settimeofday", "clock_settime", "clock_settime64", "stime", "syslog", "acct", "iopl", "ioperm", "vhangup"),
    # other processes, their files and their keys
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd"),
    *("open_by_handle_at", "name_to_handle_at", "add_key", "request_key", "keyctl"),
    # what only old programs use
    *("uselib", "ustat", "sysfs", "_sysctl", "nfsservctl", "lookup_dcookie", "vm86", "vm86old", "modify_ldt"),
)
_NEWER = {"open_tree_attr": 467}
"""Numbers, on all architectures that images are built for, of system calls that libseccomp may not know yet."""
_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
"""The flags CLONE_NEW... of sched.h."""

RUNTIME_DEFAULT = Profile(
    default_action=Action.ALLOW,
    syscalls=(
        Rule(names=_REFUSED, action=Action.ERRNO, errno_ret=errno.EPERM),
        # Its flags are in memory, where a filter cannot see them; libraries then use clone.
        Rule(names=("clone3",), action=Action.ERRNO, errno_ret=errno.ENOSYS),
        Rule(
            names=("clone",),
            action=Action.ERRNO,
            errno_ret=errno.EPERM,
            args=tuple(Condition(index=0, value=one, value_two=one, op=Operator.MASKED_EQ) for one in _NAMESPACES),
        ),
    ),
)
"""Refuses what container runtimes refuse a container without capabilities, and nothing that is newer than this list."""


def read_profile(named: SeccompProfile) -> Profile:
    """Return the profile that the settings name.

    Raises:
        SettingsError: the file cannot be read, or is not a profile.
    """
    if named.localhost_profile is None:
        return RUNTIME_DEFAULT
    path = named.localhost_profile
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_PROFILE + 1)
        if len(text) > MAX_PROFILE:
            raise SettingsError([f"seccompProfile: {path} must have at most {MAX_PROFILE} bytes"])
        return msgspec.json.decode(text, type=Profile)
    except OSError as error:
        raise SettingsError([f"seccompProfile: {path} cannot be read: {error.strerror}"]) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SettingsError([f"seccompProfile: {path} is not a seccomp profile of the OCI format: {error}"]) from error


def compile_profile(profile: Profile) -> bytes:
    """Return the filter as the kernel takes it: instructions of 8 bytes.

    Names of system calls that libseccomp does not know have no effect, as in container runtimes: profiles name those of
    all kernels and architectures.

    Raises:
        SettingsError: libseccomp is not installed, or cannot compile the profile.
    """
    library = _load_library()
    default = _encode_action(profile.default_action, profile.default_errno_ret)
    context = library.seccomp_init(default)
    if not context:
        raise SettingsError([f"seccompProfile: libseccomp refuses {profile.default_action.value} as defaultAction"])
    try:
        for name in profile.architectures or ():
            token = library.seccomp_arch_resolve_name(name.removeprefix("SCMP_ARCH_").lower().encode())
            _check(library.seccomp_arch_add(context, token) if token else -errno.EINVAL, f"architecture {name}")
        for rule in profile.syscalls or ():
            action = _encode_action(rule.action, rule.errno_ret)
            if action != default:  # libseccomp refuses rules that change nothing
                for name, conditions in _expand(rule):
                    number = library.seccomp_syscall_resolve_name(name.encode())
                    number = _NEWER.get(name, number) if number == _UNKNOWN else number
                    if number != _UNKNOWN:
                        arguments = (_Comparison * len(conditions))(*map(_encode_condition, conditions))
                        added = library.seccomp_rule_add_array(context, action, number, len(conditions), arguments)
                        _check(added, f"the rule for {name}")
        return _export(library, context)
    finally:
        library.seccomp_release(context)


class _Comparison(ctypes.Structure):
    """`struct scmp_arg_cmp` of seccomp.h."""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


@cache
def _load_library() -> Any:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise SettingsError([f"seccompProfile needs {_LIBRARY}, which cannot be loaded: {error}"]) from error
    context, name = ctypes.c_void_p, ctypes.c_char_p
    library.seccomp_init.restype = context
    library.seccomp_arch_resolve_name.restype = ctypes.c_uint32
    comparisons = ctypes.POINTER(_Comparison)
    for function, parameters in (
        (library.seccomp_init, (ctypes.c_uint32,)),
        (library.seccomp_arch_resolve_name, (name,)),
        (library.seccomp_arch_add, (context, ctypes.c_uint32)),
        (library.seccomp_syscall_resolve_name, (name,)),
        (library.seccomp_rule_add_array, (context, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, comparisons)),
        (library.seccomp_export_bpf, (context, ctypes.c_int)),
        (library.seccomp_release, (context,)),
    ):
        function.argtypes = parameters
    return library


def _expand(rule: Rule) -> Iterator[tuple[str, tuple[Condition, ...]]]:
    """Yield the rules of libseccomp, which takes one condition for an argument."""
    conditions = rule.args or ()
    together = len({one.index for one in conditions}) == len(conditions)
    for name in rule.names:
        if together:
            yield name, conditions
        else:
            yield from ((name, (one,)) for one in conditions)


def _encode_action(action: Action, error: int | None) -> int:
    return _ACTIONS[action] | ((error or errno.EPERM) if action is Action.ERRNO else 0)


def _encode_condition(condition: Condition) -> _Comparison:
    return _Comparison(condition.index, _OPERATORS[condition.op], condition.value, condition.value_two)


def _export(library: Any, context: int) -> bytes:
    file = os.memfd_create("seccomp-filter")
    try:
        _check(library.seccomp_export_bpf(context, file), "the profile")
        return os.pread(file, os.fstat(file).st_size, 0)
    finally:
        os.close(file)


def _check(code: int, what: str) -> None:
    if code < 0 and code != -errno.EEXIST:  # what is said twice is said
        raise SettingsError([f"seccompProfile: libseccomp refuses {what}: {os.strerror(-code)}"])
