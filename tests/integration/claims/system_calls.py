"""The system calls of a process below one directory: recorded, or answered with EIO, by strace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

STRACE = shutil.which("strace") or ""
_CALLS = "openat,write,pwrite64,ftruncate,fsync,fdatasync,rename,unlink,mkdir,rmdir"
_LINE = re.compile(r"^\d+ +(\w+)\((.*)\) = (\d+)(?:<.*>)?$")
_SPLIT = re.compile(r"^(\d+) +(.*) <unfinished \.\.\.>$"), re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")
_TEXT = re.compile(r'[<"]((?:\\x[0-9a-f]{2})*)[>"]')

needs_strace = pytest.mark.skipif(not STRACE, reason="strace is not installed: it sees and fails system calls")


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One system call that succeeded and changed something, or flushed it. Paths are below the root."""

    call: str
    path: str
    to: str = ""
    content: bytes = b""


def record(command: Sequence[str], root: Path, *, cwd: Path) -> list[Effect]:
    """Run the command under strace; return what it did to files below `root`, in order."""
    trace = root.with_name(f"{root.name}.trace")
    options = ["-f", "--seccomp-bpf", "-y", "-xx", "-s", "1000000", "-e", f"trace={_CALLS}", "-o", str(trace)]
    done = subprocess.run([STRACE, *options, *command], cwd=cwd, check=False, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return list(_parse(trace.read_text().splitlines(), os.path.realpath(root)))


def _parse(lines: Sequence[str], root: str) -> Iterator[Effect]:
    begun: dict[str, str] = {}
    for line in lines:
        if unfinished := _SPLIT[0].match(line):
            begun[unfinished[1]] = line.removesuffix(" <unfinished ...>")
            continue
        resumed = _SPLIT[1].match(line)
        if (found := _LINE.match(begun.pop(resumed[1]) + resumed[2] if resumed else line)) is None:
            continue
        call, arguments = found[1], found[2]
        texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(arguments)]
        if call == "openat":
            if "O_CREAT" not in arguments:
                continue
            texts = texts[-1:]
        path, *rest = texts
        names = [os.path.relpath(os.fsdecode(one), root) for one in (path, *rest[: call == "rename"])]
        if names[0].startswith(".."):
            continue
        content = rest[0][: int(found[3])] if call == "write" else b""
        assert call not in ("pwrite64", "ftruncate") or names[0].startswith("run/"), f"{call} is not replayed"
        yield Effect(call=call, path=names[0], to=names[1] if call == "rename" else "", content=content)


def run_failing(
    command: Sequence[str], failing: Mapping[str, tuple[int, int]], paths: Sequence[Path], *, cwd: Path
) -> None:
    """Run the command while these calls on these paths fail with EIO.

    `failing` has for each call which one of a thread fails first, and how many calls later again.
    """
    inject = [f"-einject={call}:error=EIO:when={first}+{step}" for call, (first, step) in failing.items()]
    options = ["-f", "-qq", "-o", "/dev/null", f"-etrace={','.join(failing)}", *inject, *(f"-P{one}" for one in paths)]
    done = subprocess.run([STRACE, *options, *command], cwd=cwd, check=False, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
