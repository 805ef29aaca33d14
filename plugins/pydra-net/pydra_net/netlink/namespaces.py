"""Network namespaces as open files, and work inside them. Source: setns(2), network_namespaces(7)."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pydra_net.kernel import KernelRefused, Namespace, NamespaceGone

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The process or the node is short of something; the namespace is there all the same."""
_libc = ctypes.CDLL(None, use_errno=True)


class OpenNamespace:
    """A namespace that lives at least until it is closed. Its links cannot be lost before that."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _explain(f"cannot open the network namespace at {path}", error.errno or 0) from error
        found = os.fstat(self.fd)
        self.inode = found.st_dev, found.st_ino

    def is_same(self, other: Namespace) -> bool:
        """Whether both are one namespace."""
        return isinstance(other, OpenNamespace) and self.inode == other.inode

    def close(self) -> None:
        """Let it end, if nobody else uses it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def run(self, work: Callable[[], T]) -> T:
        """Do the work in this namespace, in a thread of its own: a thread that cannot come back must not be used again.

        Raises:
            NamespaceGone: the file is not that of a network namespace, or may not be entered.
            KernelRefused: nobody knows, for want of memory.
        """

        def enter_and_work() -> T:
            if _libc.setns(self.fd, _CLONE_NEWNET):
                raise _explain(f"cannot enter the network namespace at {self.path}", ctypes.get_errno())
            return work()

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="netns") as thread:
            return thread.submit(enter_and_work).result()


def _explain(text: str, code: int) -> KernelRefused | NamespaceGone:
    text = f"{text}: {os.strerror(code)}"
    return KernelRefused(text, code) if code in _SHORT else NamespaceGone(text)
