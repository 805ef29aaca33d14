"""Carries out steps of one kind, or undoes them. Blocks: everything here is called in a thread.

Every function can be interrupted anywhere and called again: it looks where the interface is, and does what is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from pydra import ClaimError
from pydra_net.kernel import Kernel, Namespace, NamespaceGone
from pydra_net.steps import Step

StepT = TypeVar("StepT", bound=Step)


class AttachFailed(ClaimError):
    """A pod could not get an interface."""

    reason = "InterfaceNotAttached"


class StepApplier(ABC, Generic[StepT]):
    """For the steps of one kind, on one node."""

    def __init__(self, kernel: Kernel, host: Namespace) -> None:
        self._kernel = kernel
        self._host = host

    @abstractmethod
    def mark(self, step: StepT, pods: Sequence[Namespace]) -> None:
        """Prepare what can be done before the pod exists. Raises ClaimError, LeftBehind."""

    @abstractmethod
    def give(self, step: StepT, pod: Namespace, others: Sequence[Namespace] = ()) -> None:
        """Let the pod have the interface, and `others`, its earlier sandboxes, not. Raises AttachFailed."""

    @abstractmethod
    def take_back(self, step: StepT, pods: Sequence[Namespace]) -> None:
        """Let no pod have the interface; the node is as it was. Raises UndoLater."""

    def unmark(self, step: StepT) -> None:
        """Leave no trace of the claim on the node. Most kinds of steps have left none."""

    def is_in(self, step: StepT, pod: Namespace) -> bool:
        """Whether the pod has it."""
        with suppress(NamespaceGone):
            return self._find(step, pod) is not None
        return False

    @abstractmethod
    def _find(self, step: StepT, where: Namespace) -> object | None:
        """What the step is about, if it is in this namespace."""
