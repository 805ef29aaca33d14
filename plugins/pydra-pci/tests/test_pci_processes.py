"""Who has a device open, from the links in /proc."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pydra_pci import (
    DeviceBusy,
    ProcessesUnseen,
    Roots,
    Tree,
    find_others,
    find_users,
    require_all_seen,
    wait_until_idle,
)


@pytest.mark.parametrize(
    ("link", "used"),
    [
        ("/dev/nvidia1", True),
        ("/dev/nvidia1 (deleted)", True),
        ("/run/nvidia/driver/dev/nvidia1", True),
        ("/dev/nvidia11", False),
        ("/dev/nvidia0", False),
        ("/dev/nvidiactl", False),
        ("/home/nvidia1", False),
        ("socket:[4711]", False),
    ],
)
def test_a_process_uses_the_gpu_whose_node_it_has_open(node: Any, link: str, used: bool) -> None:
    node.run(7, "python3", link)
    assert find_users(node.tree, ("/dev/nvidia1",)) == ({7: "python3"} if used else {})


def test_a_file_of_the_same_name_is_no_device_whoever_has_it_open(tmp_path: Path) -> None:
    """Any pod may open one; the devices of others would seem to be in use as long as it likes."""
    tree, files = Tree(Roots()), [tmp_path / name / "dev/null" for name in ("file", "node")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
    files[0].touch()
    with suppress(PermissionError):
        os.mknod(files[1], stat.S_IFCHR | 0o600, os.makedev(1, 5))  # with the numbers of /dev/zero
    script = "import sys; kept = [open(one) for one in sys.argv[1:]]; print(flush=True); sys.stdin.read()"
    opened = [str(file) for file in files if file.exists()]
    with (
        subprocess.Popen(
            [sys.executable, "-c", script, *opened],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as pod,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as user,
    ):
        assert pod.stdout is not None
        assert pod.stdout.readline() == b"\n"
        users = find_users(tree, ("/dev/null",))
        for process in (pod, user):
            process.communicate(b"\n", timeout=30)
    assert user.pid in users
    assert pod.pid not in users


def test_no_nodes_have_no_users(node: Any) -> None:
    node.run(7, "python3", "/dev/nvidia0")
    assert find_users(node.tree, ()) == {}


def test_a_process_that_ended_meanwhile_is_nobody(node: Any) -> None:
    (node.root / "proc/12").mkdir()
    assert find_users(node.tree, ("/dev/nvidia0",)) == {}


def test_this_process_is_known_by_the_pid_that_the_trees_proc_gives_it(node: Any) -> None:
    node.run(7, "python3", "/dev/nvidia0")
    assert find_others(node.tree, ("/dev/nvidia0",), [7, 4242]) == {7: "python3", 4242: "a process"}
    (node.root / "proc/self").symlink_to("4242")
    assert find_others(node.tree, ("/dev/nvidia0",), [7, 4242]) == {7: "python3"}


def test_a_process_that_may_not_be_looked_at_might_use_any_device(node: Any) -> None:
    node.run(7, "python3", "/dev/nvidia0")
    node.run(8, "qemu", "/dev/null")
    assert look_without_rights(node.tree) is None
    (node.root / "proc/8/fd").chmod(0)
    with pytest.raises(
        ProcessesUnseen,
        match=r"what qemu \(pid 8\) may have open cannot be seen, so .*"
        "needs the capabilities DAC_READ_SEARCH and SYS_PTRACE$",
    ):
        raise look_without_rights(node.tree) or AssertionError
    (node.root / "proc/8/fd").chmod(0o700)


def look_without_rights(tree: Tree) -> Exception | None:
    """What is raised in a thread that no capability lets read everything: root has them, in each thread its own."""

    def look() -> Exception | None:
        header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        ctypes.CDLL(None).capset(header, none)
        try:
            require_all_seen(tree)
        except ProcessesUnseen as error:
            return error
        return None

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(look).result()


LOOK = """
import sys
from pydra_pci import ProcessesUnseen, Roots, Tree, require_all_seen
try:
    require_all_seen(Tree(Roots(host=sys.argv[1], proc=sys.argv[1] + "/proc")))
except ProcessesUnseen as error:
    print(error)
"""


def test_capabilities_that_are_there_are_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/8").symlink_to(f"/proc/{os.getpid()}")
    # In a user namespace of its own the process has all capabilities, and may look at no process outside.
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", LOOK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr}")
    assert "the agent has DAC_READ_SEARCH and SYS_PTRACE, but something else refuses it" in done.stdout, done.stderr


async def test_waiting_ends_with_the_first_look_that_finds_nobody() -> None:
    looks: list[Mapping[int, str]] = [{1: "a"}, {}, {2: "b"}]

    async def attempt() -> Mapping[int, str]:
        return looks.pop(0)

    await wait_until_idle(attempt, what="GPU", variable="X", deadline=60)
    assert looks == [{2: "b"}]


async def test_waiting_in_vain_names_who_is_in_the_way_but_not_all_of_a_crowd() -> None:
    async def attempt() -> Mapping[int, str]:
        return dict.fromkeys(range(1, 15), "python3")

    with pytest.raises(DeviceBusy) as caught:
        await wait_until_idle(attempt, what="GPU 0000:53:00.0", variable="DEADLINE", deadline=0.01)
    words = str(caught.value)
    assert "GPU 0000:53:00.0 is still in use after 0.01 s, by python3 (pid 1), python3 (pid 2)" in words
    assert "python3 (pid 10), 4 more;" in words
    assert "DEADLINE" in words
