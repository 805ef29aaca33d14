"""The tree of files of a simulated machine, which a scenario names: written once, below a state directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import TypeVar

from pydra import PydraError

Machine = TypeVar("Machine")


class ScenarioError(PydraError):
    """There is no such scenario, or no place for its files."""

    reason = "InvalidScenario"


def find_machine(name: str, machines: Mapping[str, Machine], *others: str) -> Machine:
    """Return the machine of a scenario; `others` are further scenarios for the message. Raises ScenarioError."""
    if name not in machines:
        raise ScenarioError(f"there is no scenario {name}; bundled are: {', '.join((*others, *machines))}")
    return machines[name]


def default_state(backend: str) -> str:
    """Where the files of a backend's machine are when nobody says where."""
    return os.path.join(tempfile.gettempdir(), f"{backend}-{os.getuid()}")


def open_tree(state: str, write: Callable[[str], None], *, variable: str) -> str:
    """Return the root of the machine's files, which `write` makes if they are not there yet.

    `variable` sets the state directory.

    Raises:
        ScenarioError: the files cannot be written.
    """
    root = os.path.join(os.path.realpath(state), "tree")
    try:
        if not os.path.exists(root):
            _write_tree(root, write)
    except OSError as error:
        raise ScenarioError(
            f"cannot write the simulated machine to {root}: {error.strerror}; set {variable} to a directory of your own"
        ) from error
    return root


def _write_tree(root: str, write: Callable[[str], None]) -> None:
    """Have `write` make the files beside their place, and move them there, so that nobody reads half a machine."""
    os.makedirs(os.path.dirname(root), exist_ok=True)
    draft = tempfile.mkdtemp(prefix=".tree-", dir=os.path.dirname(root))
    write(draft)
    os.chmod(draft, 0o755)  # noqa: S103 - as a machine's root is; mkdtemp makes it private
    try:
        os.rename(draft, root)
    except OSError:
        shutil.rmtree(draft)
        if not os.path.exists(root):  # else another process was first
            raise
