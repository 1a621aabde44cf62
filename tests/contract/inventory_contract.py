"""What every Inventory keeps: the fake that pure tests use, and the adapter on moto."""

from __future__ import annotations

from typing import Protocol

from cloudtrain.provisioner.ports import Inventory
from cloudtrain.provisioner.things import Kind, Thing

REGION = "us-east-1"


class World(Protocol):
    """An account, and what a test may do to it."""

    @property
    def inventory(self) -> Inventory: ...

    @property
    def job(self) -> str:
        """The id of a job that nobody has used in this account."""

    def launch(self) -> str:
        """Start a machine of the job as the controller does, its group first; the machine's id."""

    def foreign(self) -> str:
        """A machine of somebody else's."""

    def until(self, gone: str) -> None:
        """Let time pass until a machine is gone; AssertionError if it never is."""

    def bucket(self) -> str:
        """A bucket of the account."""


class InventoryContract:
    """Subclass it, and give it a ``world``."""

    def mine(self, world: World) -> dict[Kind, list[Thing]]:
        found: dict[Kind, list[Thing]] = {}
        for thing in world.inventory.look(REGION)[0]:
            if thing.tag("cloudtrain:job") == world.job:
                found.setdefault(thing.kind, []).append(thing)
        return found

    def test_what_a_launch_makes_is_found(self, world: World) -> None:
        machine = world.launch()
        found = self.mine(world)
        assert [t.thing_id for t in found[Kind.MACHINE]] == [machine]
        assert found[Kind.GROUP][0].name == f"cloudtrain-{world.job}"

    def test_somebody_elses_is_not(self, world: World) -> None:
        other = world.foreign()
        assert other not in {t.thing_id for t in world.inventory.look(REGION)[0]}

    def test_ending_is_asked_and_then_seen(self, world: World) -> None:
        machine = world.launch()
        (thing,) = self.mine(world)[Kind.MACHINE]
        assert world.inventory.end([thing]) == ()
        assert world.inventory.end([thing]) == (), "asked again, it is no refusal"
        world.until(machine)
        assert Kind.MACHINE not in self.mine(world)

    def test_what_is_refused_keeps_nothing_else(self, world: World) -> None:
        """A group can't go while its machine lives, and the machine goes all the same."""
        machine = world.launch()
        found = self.mine(world)
        group = found[Kind.GROUP][0]
        world.inventory.end([group, *found[Kind.MACHINE]])
        world.until(machine)
        for thing in self.mine(world).get(Kind.GROUP, []):
            assert world.inventory.end([thing]) == ()
        assert Kind.GROUP not in self.mine(world)

    def test_what_is_gone_already_is_no_refusal(self, world: World) -> None:
        machine = world.launch()
        found = self.mine(world)
        world.inventory.end(found[Kind.MACHINE])
        world.until(machine)
        things = [t for kind in found for t in found[kind]]
        world.inventory.end(things)
        refused = world.inventory.end(things)
        assert refused == (), repr(refused)

    def test_buckets_are_there_or_not(self, world: World) -> None:
        assert world.inventory.bucket_region(world.bucket()) == REGION
        assert world.inventory.bucket_region("nobody-has-this-bucket-name-1") is None
        assert world.inventory.uploads(world.bucket(), REGION) == ()
