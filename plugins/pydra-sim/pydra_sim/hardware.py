"""The simulated machine. What was done to it lies in files, and outlives the process as real hardware's state does.

`active/<key>.json` is a device at work for a claim. A file `unhealthy/<device>` says what is wrong with a device,
`unplugged/<device>` that it is gone; both may be made by hand. `faults/<key>` counts the calls that a fault has seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from pydra import PydraError
from pydra_sim.scenario import Group, Scenario, ScenarioError, parse_scenario


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator or, with a `profile` such as `2of4`, a partition: the `slices` of it; memory in GiB."""

    name: str
    accelerator: str
    profile: str
    group: Group
    index: int
    ordinal: int
    slices: range
    memory: int
    cores: int


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A device at work for the claim of this uid; `env` is what its containers see."""

    claim: str
    accelerator: str
    slots: list[str]
    memory: str
    env: dict[str, str]


class Machine:
    """The machine of a scenario (a path, or a bundled one's name), with its state below `directory`."""

    def __init__(self, scenario: str, directory: str) -> None:
        bundled = Path(__file__).parent / "scenarios" / f"{scenario}.yaml"
        self._file = bundled if os.path.exists(bundled) else Path(scenario)
        self._text, self._scenario = b"", Scenario()
        self._parts = {part.name: part for part in _build_parts(self._scenario)}
        self._state = Path(directory)
        for folder in ("active", "unhealthy", "unplugged", "faults"):
            (self._state / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        if (owner := self._state.lstat().st_uid) != os.getuid():
            raise PydraError(f"{directory} belongs to uid {owner}; set PYDRA_SIM_STATE to a directory of your own")

    def read_signature(self) -> object:
        """What differs when the scenario or a mark has changed."""
        return self._read_text(), self._read_marks("unhealthy"), self._read_marks("unplugged")

    def read_scenario(self) -> Scenario:
        """What the scenario's file says now. Raises ScenarioError."""
        text = self._read_text()
        if text is None:
            raise ScenarioError(f"scenario {self._file} cannot be read; bundled are: partitions, shared, trouble")
        if text != self._text:
            self._scenario = parse_scenario(text, str(self._file))
            self._parts, self._text = {part.name: part for part in _build_parts(self._scenario)}, text
        return self._scenario

    def read_parts(self) -> Mapping[str, Part]:
        """All that is there, by name: each accelerator, then its partitions. Raises ScenarioError."""
        gone = {*self.read_scenario().unplugged, *self._read_marks("unplugged")}
        return {name: part for name, part in self._parts.items() if not gone & {name, part.accelerator}}

    def find(self, device: str) -> Part | None:
        """The part of this name, if it is there. Raises ScenarioError."""
        gone, part = {*self.read_scenario().unplugged, *self._read_marks("unplugged")}, self._parts.get(device)
        return None if part is None or gone & {part.name, part.accelerator} else part

    def read_ailments(self) -> Mapping[str, str]:
        """What is wrong with which device."""
        return {**self.read_scenario().unhealthy, **self._read_marks("unhealthy")}

    def read_work(self) -> Mapping[str, Work]:
        """Everything at work."""
        files = sorted((self._state / "active").glob("*.json"))
        return {file.stem: msgspec.json.decode(file.read_bytes(), type=Work) for file in files}

    def start(self, key: str, work: Work) -> str:
        """Put a device to work; again changes nothing. Returns the file that describes it."""
        file = self._state / "active" / f"{key}.json"
        draft = file.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(work))
        draft.replace(file)  # at once, so that nobody reads half of it
        return str(file)

    def stop(self, key: str) -> None:
        """End the work, if there is any."""
        (self._state / "active" / f"{key}.json").unlink(missing_ok=True)

    def mark(self, folder: str, device: str, message: str) -> None:
        """Make a device `unhealthy` or `unplugged` from now on."""
        (self._state / folder / device).write_text(message)

    def count(self, key: str) -> int:
        """How often this was called for the key before, by any process."""
        with (self._state / "faults" / key).open("ab") as file:
            earlier = file.tell()
            file.write(b".")
            return earlier

    def _read_text(self) -> bytes | None:
        try:
            return self._file.read_bytes() if self._file.name else b""
        except OSError:
            return None

    def _read_marks(self, folder: str) -> Mapping[str, str]:
        return {file.name: file.read_text().strip() for file in sorted((self._state / folder).iterdir())}


def _build_parts(scenario: Scenario) -> Iterator[Part]:
    accelerators = [(group, index) for group in scenario.groups for index in range(group.count)]
    for ordinal, (group, index) in enumerate(accelerators):
        accelerator, whole = f"{group.name}-{index}", max(group.slices, 1)
        sizes = sorted(set(group.partitions)) if group.slices else []
        for slices in [
            range(whole),
            *(range(at, at + size) for size in sizes for at in range(0, whole - size + 1, size)),
        ]:
            profile = f"{len(slices)}of{whole}" if len(slices) < whole else ""
            yield Part(
                name=f"{accelerator}-{profile}-{slices.start}" if profile else accelerator,
                accelerator=accelerator,
                profile=profile,
                group=group,
                index=index,
                ordinal=ordinal,
                slices=slices,
                memory=group.memory * len(slices) // whole,
                cores=group.cores * len(slices) // whole,
            )
