"""Network namespaces that cannot be opened."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from pydra_net.kernel import KernelRefused, NamespaceGone
from pydra_net.netlink.kernel import NetlinkKernel


def test_a_namespace_that_cannot_be_opened_now_is_not_taken_for_one_that_has_ended(tmp_path: Path) -> None:
    kernel, path = NetlinkKernel(()), tmp_path / "netns"
    with pytest.raises(NamespaceGone, match="No such file"):
        kernel.open(str(path))
    path.touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(KernelRefused, match="Too many open files"):
            kernel.open(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
