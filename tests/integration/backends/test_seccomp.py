"""Seccomp profiles, from their file to what the kernel then refuses."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pydra.backends.child import give_up_rights
from pydra.backends.seccomp import MAX_PROFILE, compile_profile, read_profile
from pydra.errors import SettingsError
from pydra.settings import SeccompProfile, SeccompType
from tests.integration.backends.harness import need_libseccomp

PROBE = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    return "" if getattr(libc, name)(*arguments) >= 0 else errno.errorcode[ctypes.get_errno()]
print(*(call("personality", number) or "ok" for number in (0xffffffff, 0, 8)), call("getpriority", 0, 0) or "ok")
"""
"""Calls that do no harm: asks for the personality, sets two, and asks for the priority."""


NEW_PROBE = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(467, -1, None, 0, None, 0)
print(errno.errorcode[ctypes.get_errno()])
"""


def _profile(default: str, *rules: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"defaultAction": f"SCMP_ACT_{default}", "syscalls": list(rules), **fields}


def _rule(action: str, *conditions: tuple[str, int, int], name: str = "personality", **fields: Any) -> dict[str, Any]:
    args = [{"index": 0, "op": f"SCMP_CMP_{op}", "value": value, "valueTwo": two} for op, value, two in conditions]
    return {"names": [name], "action": f"SCMP_ACT_{action}", "args": args, **fields}


@pytest.mark.parametrize(
    ("profile", "answers"),
    [
        pytest.param(_profile("ALLOW"), "ok ok ok ok", id="no rule"),
        pytest.param(_profile("ALLOW", _rule("ERRNO")), "EPERM EPERM EPERM ok", id="a call, with the usual error"),
        pytest.param(
            _profile("ALLOW", _rule("ERRNO", errnoRet=38)), "ENOSYS ENOSYS ENOSYS ok", id="an error of its own"
        ),
        pytest.param(_profile("ALLOW", _rule("ERRNO", ("EQ", 8, 0))), "ok ok EPERM ok", id="an argument"),
        pytest.param(
            _profile("ALLOW", _rule("ERRNO", ("EQ", 8, 0), ("EQ", 0, 0))),
            "ok EPERM EPERM ok",
            id="either of two values",
        ),
        pytest.param(
            _profile("ALLOW", _rule("ERRNO", ("MASKED_EQ", 8, 0))), "ok EPERM ok ok", id="the bits of an argument"
        ),
        pytest.param(
            _profile("ALLOW", _rule("ERRNO", name="a_call_of_another_kernel"), _rule("ALLOW")),
            "ok ok ok ok",
            id="rules that change nothing",
        ),
        pytest.param(
            _profile("ALLOW", _rule("ERRNO"), architectures=["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]),
            "EPERM EPERM EPERM ok",
            id="several architectures",
        ),
        pytest.param(
            _profile("LOG", _rule("ALLOW", ("NE", 8, 0)), _rule("ERRNO", ("EQ", 8, 0), errnoRet=22)),
            "ok ok EINVAL ok",
            id="another default",
        ),
    ],
)
def test_a_profile_means_what_it_means_in_a_container_runtime(
    profile: dict[str, Any], answers: str, tmp_path: Path
) -> None:
    assert _run_filtered(_compile(profile, tmp_path), PROBE) == answers


def test_the_default_profile_refuses_a_call_that_libseccomp_does_not_know_yet() -> None:
    need_libseccomp()
    compiled = compile_profile(read_profile(SeccompProfile(type=SeccompType.RUNTIME_DEFAULT)))
    assert _run_filtered(base64.b64encode(compiled).decode(), NEW_PROBE) == "EPERM"


def _run_filtered(compiled: str, code: str) -> str:
    given: dict[str, Any] = {"cgroup": None, "user": None, "group": None, "groups": [], "filter": compiled}
    python = [sys.executable, "-I", "-S"]
    command = [*python, give_up_rights.__file__, json.dumps(given), *python, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_profile_that_allows_too_little_is_named_as_the_reason(tmp_path: Path) -> None:
    given: dict[str, Any] = {"cgroup": None, "user": None, "group": None, "groups": []}
    given["filter"] = _compile(_profile("ALLOW", _rule("ERRNO", name="execve")), tmp_path)
    command = [sys.executable, "-I", "-S", give_up_rights.__file__, json.dumps(given), "/bin/true"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "/bin/true cannot be executed with these rights: Operation not permitted\n"


@pytest.mark.parametrize(
    ("profile", "problem"),
    [
        pytest.param(b"{", "Input data was truncated", id="not JSON"),
        pytest.param(b"\xff", "is not a seccomp profile", id="not text"),
        pytest.param(b'{"\xff":1}', "is not a seccomp profile", id="a key that is not UTF-8"),
        pytest.param(b"{}", "missing required field `defaultAction`", id="empty"),
        pytest.param(_profile("NOTIFY"), "Invalid enum value 'SCMP_ACT_NOTIFY'", id="an action that needs a listener"),
        pytest.param(
            _profile("ALLOW", _rule("ERRNO", includes={"caps": ["CAP_SYS_ADMIN"]})),
            "unknown field `includes` - at `$.syscalls[0]`",
            id="the format of another tool",
        ),
        pytest.param(_profile("ALLOW", _rule("ERRNO", ("EQ", 2**64, 0))), "less than 2**64", id="too large a value"),
        pytest.param(
            _profile("ALLOW", architectures=["SCMP_ARCH_Z80"]),
            "libseccomp refuses architecture SCMP_ARCH_Z80: Invalid argument",
            id="an architecture that there is not",
        ),
        pytest.param(b" " * (MAX_PROFILE + 1), f"must have at most {MAX_PROFILE} bytes", id="a large file"),
    ],
)
def test_a_bad_profile_is_refused_with_what_is_wrong_in_it(profile: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        _compile(profile, tmp_path)
    assert problem in str(caught.value)
    assert str(caught.value).startswith("seccompProfile: ")


def _compile(profile: Any, directory: Path) -> str:
    need_libseccomp()
    path = directory / "profile.json"
    text = json.dumps(profile).encode() if isinstance(profile, dict) else profile
    path.write_bytes(text)
    filter_ = compile_profile(read_profile(SeccompProfile(type=SeccompType.LOCALHOST, localhost_profile=str(path))))
    return base64.b64encode(filter_).decode()
