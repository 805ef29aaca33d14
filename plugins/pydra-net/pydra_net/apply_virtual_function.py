"""Lets cards do with virtual functions what claims say, and what they did before. Blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pydra import ClaimError, LeftBehind, UndoLater
from pydra_net.hardware_types import VirtualFunction
from pydra_net.kernel import Kernel, KernelRefused, Namespace
from pydra_net.network_change_types import SetFunction
from pydra_net.network_types import Reading, VirtualFunctionState
from pydra_net.step_appliers import StepApplier
from pydra_net.steps import ConfigureFunction

_log = logging.getLogger(__name__)

_TOGETHER = (("mac",), ("vlan", "qos"), ("min_rate", "max_rate"), ("spoof_check",), ("trust",), ("link_state",))
"""What one message sets."""


class FunctionConfigurer(StepApplier[ConfigureFunction]):
    """Lets the cards of one node do with virtual functions what claims say. `read` says where a function is."""

    def __init__(self, kernel: Kernel, host: Namespace, read: Callable[[str, Reading], VirtualFunction | None]) -> None:
        super().__init__(kernel, host)
        self._read = read

    def mark(self, step: ConfigureFunction, _pods: Sequence[Namespace]) -> None:
        """Configure it: that needs no pod. Raises ClaimError; LeftBehind when the card refuses a part."""
        found = self._find_function(step)
        if found is None:
            raise ClaimError(f"the virtual function {step.name} ({step.device}) was removed just now; try again")
        if refused := self._apply(step, *found, step.target):
            text = "; ".join(map(str, refused))
            raise LeftBehind(f"{step.card_name} does not take the configuration of {step.name}: {text}")

    def give(self, step: ConfigureFunction, pod: Namespace, others: Sequence[Namespace] = ()) -> None:
        """Do nothing: the card does it."""

    def take_back(self, step: ConfigureFunction, _pods: Sequence[Namespace]) -> None:
        """Configure it as it was, if it is there still. Raises UndoLater."""
        found = self._find_function(step)
        if found is None:
            _log.warning("%s (%s) is gone: somebody removed the virtual function", step.name, step.device)
            return
        if refused := self._apply(step, *found, step.before):
            raise UndoLater(f"{step.card_name} does not take back the configuration of {step.name}: {refused[0]}")

    def _find(self, _step: ConfigureFunction, _where: Namespace) -> None:
        """Nothing of it is in a pod."""

    def _find_function(self, step: ConfigureFunction) -> tuple[int, VirtualFunctionState] | None:
        """The card's interface, and how the function is now."""
        found = self._read(step.pci_address, self._kernel.read_links(self._host))
        if found is None or found.link is None or found.state is None or found.number != step.number:
            return None
        return found.link.index, found.state

    def _apply(
        self, step: ConfigureFunction, card: int, present: VirtualFunctionState, wanted: VirtualFunctionState
    ) -> Sequence[KernelRefused]:
        operations = []
        for names in _TOGETHER:
            known = {name: getattr(present, name) for name in names}
            changes = {name: value for name, value in wanted.list_known().items() if name in names}
            if any(value != known[name] for name, value in changes.items()):
                state = VirtualFunctionState(**{**known, **changes})
                operations.append(SetFunction(index=card, number=step.number, state=state))
        refused = self._kernel.apply(self._host, operations)
        # Not all cards must know the address: the function has it itself.
        unknown = [one for one in refused if str(one).startswith("set mac") and not one.passes]
        for one in unknown:
            _log.info("%s does not take the address of %s: %s", step.card_name, step.name, one)
        return [one for one in refused if one not in unknown]
