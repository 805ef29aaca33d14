"""A driver that takes the place of another: what that one prepared is kept, and while it runs nothing is served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from pydra.agent.takeover import SUFFIX, Names, take_over_claims
from pydra.backends.contract import Inheritance, InheritedClaim
from pydra.cdi.device_metadata_files import MetadataPaths, MetadataStore
from pydra.cdi.edits import ContainerEdits
from pydra.cdi.store import CdiStore
from pydra.checkpoint.locks_between_instances import InstanceLocks
from pydra.checkpoint.record import Record, Stage
from pydra.checkpoint.store import RecordStore
from pydra.claim import AllocatedDevice, Claim
from pydra.claims.claim_files import ClaimFiles
from pydra.errors import CheckpointError, ClaimError
from pydra.kube.api_resources import EVENTS
from pydra_dev.apiserver.faults import Fault
from pydra_dev.node import EmbeddedNode, run_node
from tests.integration.agent.process import DEADLINE, run_agent


def ignore(step: object) -> None:
    """Ignore what the kubelet reports."""


def leave(node: EmbeddedNode, uid: str, name: str = "old") -> Path:
    directory = Path(node.settings.root, "plugins", "heir.example.com")
    directory.mkdir(parents=True, exist_ok=True)
    directory.joinpath("old.json").write_text(json.dumps({"uid": uid, "namespace": name and "default", "name": name}))
    return directory


async def test_claims_of_the_driver_before_are_kept_and_given_back_when_nobody_has_them_any_more() -> None:
    async with run_node(ignore) as node:
        directory = leave(node, "uid-1")
        async with run_agent(node, "--backend", "heir:", "--log-level", "debug") as agent:
            await agent.wait_ready()
            assert "took over claims that another driver had prepared: 1" in agent.messages()
            assert directory.joinpath("old.json.inherited").exists()
            assert not directory.joinpath("old.json").exists()
            assert [path.name for path in Path(node.cdi_directory).iterdir()] == ["heir.example.com-claim_uid-1.json"]
            assert "was restored" not in agent.messages(), "nobody had removed it"
            await agent.wait_metric(r'^pydra_checkpoint_records\{driver="heir.example.com",stage="completed"\} 1.0$')
            assert await agent.stop() == 0
        async with run_agent(node, "--backend", "heir:", name="second") as agent:
            await agent.wait_ready()
            assert "took over" not in agent.messages()
            assert await agent.stop() == 0


async def test_while_its_claims_cannot_be_taken_over_nothing_is_served_and_an_event_says_so() -> None:
    async with run_node(ignore) as node:
        directory = leave(node, "uid-1", name="team/train")
        directory.joinpath("alive").touch()
        async with run_agent(node, "--backend", "heir:") as agent:
            await agent.wait_log(lambda text: "the old driver still runs; remove it first" in text)
            assert "the old driver still runs" in await agent.wait_ready(503)
            assert list(Path(node.settings.registry).iterdir()) == []
            with anyio.fail_after(DEADLINE):
                while not (events := await told(node)):
                    await anyio.sleep(0.02)
            assert "the old driver still runs; remove it first" in events[0]
            directory.joinpath("alive").unlink()
            await agent.wait_log(lambda text: "a claim whose name is 'team/train'; it must be a DNS subdomain" in text)
            leave(node, "uid-1")
            await agent.wait_ready()
            assert await agent.stop() == 0


async def test_an_agent_that_may_not_list_claims_says_why_it_lists_them_and_what_allows_it() -> None:
    async with run_node(ignore) as node:
        leave(node, "uid-1", name="")
        node.server.faults.add(Fault(verb="list", resource="resourceclaims", status=403, times=None))
        async with run_agent(node, "--backend", "heir:") as agent:
            said = await agent.wait_log(lambda text: "cannot be served yet" in text)
            assert "the files of the other driver lack the names of its claims" in said
            assert "allow it for the time of the migration, in the chart with rbac.listClaims=true" in said
            node.server.faults.clear()
            await agent.wait_ready()
            assert await agent.stop() == 0


async def told(node: EmbeddedNode) -> list[str]:
    found = await node.client.list(EVENTS)
    return [event["note"] for event in found.items if event["reason"] == "DriverNotServed"]


def open_store(root: Path) -> RecordStore:
    (root / "run").mkdir()
    lock = InstanceLocks(str(root / "run" / "lock"))
    store = RecordStore(str(root / "records"), lock, durable=False, boot_id="b")
    store.open()
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    opened = open_store(tmp_path)
    yield opened
    opened.lock.close()


DEVICE = AllocatedDevice(request="r", pool="n", device="a")


def inherited(uid: str, namespace: str = "ns", name: str = "c") -> InheritedClaim:
    claim = Claim(uid=uid, namespace=namespace, name=name, devices=(DEVICE,))
    return InheritedClaim(claim=claim, prepared=(DEVICE.prepared(ContainerEdits().with_env("A", "1"), state="theirs"),))


def open_files(root: Path) -> ClaimFiles:
    cdi = CdiStore(str(root / "cdi"), "d.example.com")
    paths = MetadataPaths(driver="d.example.com", plugin_directory=str(root), cdi_directory=str(root / "cdi"))
    files = ClaimFiles("d.example.com", cdi=cdi, metadata=MetadataStore(paths))
    files.open()
    return files


async def take(store: RecordStore, directory: Path, *files: str, claims: tuple[InheritedClaim, ...] = ()) -> int:
    async def inherit(directory: str) -> Inheritance:
        return Inheritance(claims=claims, files=files)

    async def find_names() -> Names:
        assert any(not one.claim.name for one in claims), "names are asked for in vain"
        return {"u1": ("shop", "gpus"), "u3": ("bank", "gpus")}

    return await take_over_claims(
        inherit,
        store,
        open_files(directory),
        find_names=find_names,
        driver="d.example.com",
        directory=str(directory),
        boot_id="b",
    )


async def test_a_claim_that_has_a_record_already_keeps_it(store: RecordStore, tmp_path: Path) -> None:
    mine = Record(claim=inherited("u1").claim, driver="d.example.com", stage=Stage.STARTED, boot_id="b")
    async with store:
        await store.write(mine)
    assert await take(store, tmp_path, claims=(inherited("u1"), inherited("u2"))) == 1
    assert store.records["u1"] is mine
    assert store.records["u2"].stage is Stage.COMPLETED


@pytest.mark.parametrize("optional", [True, False])
async def test_a_claim_holds_its_device_although_the_host_lacks_a_path_of_it(
    optional: bool, store: RecordStore, tmp_path: Path
) -> None:
    edits = ContainerEdits().with_mount("/nonexistent", "/x", optional=optional)
    claim = Claim(uid="u1", namespace="ns", name="c", devices=(DEVICE,))
    one = InheritedClaim(claim=claim, prepared=(DEVICE.prepared(edits.with_env("A", "1")),))
    assert await take(store, tmp_path, claims=(one,)) == 1
    specs = [path.read_text() for path in tmp_path.glob("cdi/*claim_u1.json")]
    assert [("A=1" in text, "/nonexistent" in text) for text in specs] == ([(True, False)] if optional else [])


@pytest.mark.parametrize("name", ["../passwd", "a\0b"])
async def test_a_file_outside_of_the_plugin_directory_is_left_alone(
    name: str, store: RecordStore, tmp_path: Path
) -> None:
    plugin, other = tmp_path / "plugin", tmp_path / "passwd"
    plugin.mkdir()
    other.touch()
    with pytest.raises(CheckpointError, match="is not in"):
        await take(store, plugin, f"{plugin}/{name}")
    assert other.exists()


async def test_a_name_that_the_driver_before_did_not_keep_is_looked_up(store: RecordStore, tmp_path: Path) -> None:
    await take(store, tmp_path, claims=(inherited("u1", "", ""), inherited("u2", "", "")))
    found = {uid: (record.claim.namespace, record.claim.name) for uid, record in store.records.items()}
    assert found == {"u1": ("shop", "gpus"), "u2": ("default", "gone-u2")}


async def test_what_another_instance_has_taken_over_meanwhile_is_its_own(store: RecordStore, tmp_path: Path) -> None:
    """It serves already, so a claim without a record has ended, and its device may have another claim."""
    theirs = tmp_path / "checkpoint.json"
    theirs.touch()

    async def inherit(directory: str) -> Inheritance:
        theirs.rename(tmp_path / f"checkpoint.json{SUFFIX}")
        return Inheritance(claims=(inherited("u1"),), files=(str(theirs),))

    async def find_names() -> Names:
        raise AssertionError("names are asked for in vain")

    taken = take_over_claims(
        inherit,
        store,
        open_files(tmp_path),
        find_names=find_names,
        driver="d",
        directory=str(tmp_path),
        boot_id="b",
    )
    assert (await taken, store.records, list(tmp_path.glob("cdi/*"))) == (0, {}, [])


async def test_what_the_backend_says_is_passed_on(store: RecordStore, tmp_path: Path) -> None:
    async def inherit(directory: str) -> Inheritance:
        raise ClaimError("not yet")

    async def find_names() -> Names:
        return {}

    with pytest.raises(ClaimError, match="not yet"):
        await take_over_claims(
            inherit,
            store,
            open_files(tmp_path),
            find_names=find_names,
            driver="d",
            directory=str(tmp_path),
            boot_id="b",
        )
