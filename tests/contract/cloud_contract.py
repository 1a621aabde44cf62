"""What every Cloud keeps: the fake that pure tests use, EC2's adapter on moto, EC2's adapter on the embedded cloud.

Subclass ``CloudContract`` and give it a ``world`` fixture. A world that lacks a semantic names the test in ``lacks``,
with the reason; such a test must fail, so that the list can't grow old.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import ClassVar, Protocol

import pytest

from cloudtrain.pricing.model import CapacityType, Pool
from cloudtrain.provisioner.adapters.images import image_for
from cloudtrain.provisioner.adapters.userdata import cloud_config
from cloudtrain.provisioner.errors import AttemptOver, CloudUnreachable, PoolUnavailable
from cloudtrain.provisioner.model import Attempt, Image, LaunchRequest, Machine, MachineState, Phase
from cloudtrain.provisioner.ports import Cloud

REGION = "us-east-1"
POOL = Pool("aws", REGION, "use1-az4", "g4dn.xlarge", CapacityType.SPOT)
ON_DEMAND = replace(POOL, capacity_type=CapacityType.ON_DEMAND)
OTHER_ZONE = replace(POOL, zone_id="use1-az2")


class World(Protocol):
    """A cloud, and what a test may do to it."""

    @property
    def cloud(self) -> Cloud: ...

    @property
    def job(self) -> str:
        """The id of a job that nobody has used in this cloud."""

    def until(self, holds: Callable[[], bool]) -> None:
        """Let time pass until it holds; AssertionError if it never does."""

    def refuse_once(self, code: str) -> None:
        """The next launch is refused."""

    def lose_reply(self) -> None:
        """The next launch takes effect, and its reply is lost."""

    def interrupt(self, machine: Machine) -> None:
        """EC2 takes the machine back, after a notice."""


def image() -> Image:
    found = image_for(POOL.instance_type)
    assert isinstance(found, Image)
    return found


def launch_request(
    world: World, *, pool: Pool = POOL, generation: int = 1, token: str | None = None, job: str = "", disk: int = 100
) -> LaunchRequest:
    """A launch as the controller asks for it."""
    job = job or world.job
    attempt = Attempt(generation, pool, token or f"{job}-{generation}-{pool.zone_id}", Phase.CLAIMED, 0.0)
    user_data = cloud_config(
        client_public_key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHY3AcyRSWXZ8rk1dnC9BmQ+h7oCsse3R/fOPCC9YRDH client",
        host_private_key=HOST_PRIVATE,
        host_public_key=HOST_PUBLIC,
        boot_deadline_at=4_000_000_000,
    )
    image_id = world.cloud.find_image(image(), pool.region).image_id
    return LaunchRequest(job, "AIDAOWNER", attempt, image(), image_id, disk, user_data, "cloudtrain-machine")


# A throw-away pair made for these tests: a host key that nothing trusts.
HOST_PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMcSKoPc2D3e1U3MotDoMD3v/0X7XDChbD8cxQhqjT00 host"
HOST_PRIVATE = """-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtz
c2gtZWQyNTUxOQAAACDHEiqD3Ng93tVNzKLQ6DA97/9F+1wwoWw/HMUIao09NAAA
AIh7RRd/e0UXfwAAAAtzc2gtZWQyNTUxOQAAACDHEiqD3Ng93tVNzKLQ6DA97/9F
+1wwoWw/HMUIao09NAAAAEDzEdCjq5Qznbva+7HovGl9iq60hn4nRJVC9rmS49Fd
2McSKoPc2D3e1U3MotDoMD3v/0X7XDChbD8cxQhqjT00AAAAAAECAwQF
-----END OPENSSH PRIVATE KEY-----
"""


class CloudContract:
    """The suite."""

    lacks: ClassVar[dict[str, str]] = {}

    @pytest.fixture(autouse=True)
    def _must_fail_where_the_world_lacks_it(self, request: pytest.FixtureRequest) -> None:
        reason = self.lacks.get(request.node.originalname)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    def test_every_gap_is_one_of_the_suite(self) -> None:
        assert all(callable(getattr(CloudContract, name, None)) for name in self.lacks)

    # ---- launch

    def test_a_launched_machine_is_found_by_its_tags(self, world: World) -> None:
        request = launch_request(world, generation=7)
        made = world.cloud.launch(request)
        assert made.instance_id.startswith("i-")
        world.until(lambda: bool(found(world)))
        (seen,) = found(world)
        assert (seen.instance_id, seen.job_id, seen.generation, seen.client_token) == (
            made.instance_id,
            world.job,
            7,
            request.attempt.client_token,
        )
        assert seen.launched_at > 0

    def test_it_runs_after_a_while_and_then_has_an_address(self, world: World) -> None:
        made = world.cloud.launch(launch_request(world))
        assert made.state is MachineState.PENDING
        machine = running(world, made)
        assert machine.endpoint is not None
        assert machine.endpoint.port > 0
        assert machine.state_reason is None

    def test_the_same_request_again_is_the_same_machine(self, world: World) -> None:
        request = launch_request(world)
        first, second = world.cloud.launch(request), world.cloud.launch(request)
        assert first.instance_id == second.instance_id
        world.until(lambda: bool(found(world)))
        assert len(found(world)) == 1

    def test_another_request_under_the_token_is_refused(self, world: World) -> None:
        made = world.cloud.launch(launch_request(world))
        with pytest.raises(AttemptOver) as caught:
            world.cloud.launch(launch_request(world, disk=200))
        assert caught.value.code == "IdempotentParameterMismatch"
        world.until(lambda: bool(found(world)))
        assert [m.instance_id for m in found(world)] == [made.instance_id]

    def test_the_token_of_a_terminated_machine_is_spent(self, world: World) -> None:
        request = launch_request(world)
        end(world, world.cloud.launch(request))
        with pytest.raises(AttemptOver) as caught:
            world.cloud.launch(request)
        assert caught.value.code == "IdempotentInstanceTerminated"

    def test_one_token_in_two_zones_is_two_machines(self, world: World) -> None:
        # Why a client token must hold the pool: RunInstances with a subnet is idempotent in its zone.
        first = world.cloud.launch(launch_request(world, token=f"{world.job}-t"))
        second = world.cloud.launch(launch_request(world, token=f"{world.job}-t", pool=OTHER_ZONE))
        assert first.instance_id != second.instance_id

    def test_a_lost_reply_leaves_one_machine(self, world: World) -> None:
        request = launch_request(world)
        world.lose_reply()
        with pytest.raises(CloudUnreachable):
            world.cloud.launch(request)
        made = world.cloud.launch(request)
        world.until(lambda: bool(found(world)))
        assert [m.instance_id for m in found(world)] == [made.instance_id]

    def test_a_refused_launch_starts_nothing(self, world: World) -> None:
        world.refuse_once("InsufficientInstanceCapacity")
        with pytest.raises(PoolUnavailable) as caught:
            world.cloud.launch(launch_request(world))
        assert caught.value.code == "InsufficientInstanceCapacity"
        assert found(world) == ()
        world.cloud.launch(launch_request(world, generation=2))
        world.until(lambda: bool(found(world)))
        assert [m.generation for m in found(world)] == [2]

    # ---- what can be seen

    def test_machines_are_the_job_s_own_in_the_named_regions(self, world: World) -> None:
        other = f"{world.job}0"
        mine = world.cloud.launch(launch_request(world))
        world.cloud.launch(launch_request(world, job=other))
        world.until(lambda: bool(found(world)) and bool(found(world, other)))
        assert [m.instance_id for m in found(world)] == [mine.instance_id]
        assert world.cloud.machines(world.job, ["us-west-2"]) == ()
        assert world.cloud.machines(world.job, []) == ()
        assert found(world, world.job[:-1]) == ()

    def test_a_spot_machine_has_a_request_that_is_fulfilled(self, world: World) -> None:
        machine = running(world, world.cloud.launch(launch_request(world)))
        assert machine.spot_request_id is not None
        assert machine.spot_request_id.startswith("sir-")
        assert machine.spot_status == "fulfilled"
        assert not machine.taken_by_cloud

    def test_an_on_demand_machine_has_none(self, world: World) -> None:
        machine = running(world, world.cloud.launch(launch_request(world, pool=ON_DEMAND)))
        assert (machine.spot_request_id, machine.spot_status) == (None, None)

    def test_an_interruption_shows_while_the_machine_still_runs(self, world: World) -> None:
        machine = running(world, world.cloud.launch(launch_request(world)))
        world.interrupt(machine)
        world.until(lambda: the(world, machine).taken_by_cloud)
        noticed = the(world, machine)
        assert noticed.state is MachineState.RUNNING
        assert noticed.spot_status == "instance-terminated-no-capacity"
        world.until(lambda: the(world, machine).gone)
        assert the(world, machine).state_reason == "Server.SpotInstanceTermination"
        assert the(world, machine).taken_by_cloud

    # ---- the end

    def test_terminate_takes_time_and_says_who_ended_it(self, world: World) -> None:
        machine = running(world, world.cloud.launch(launch_request(world)))
        world.cloud.terminate(REGION, [machine.instance_id])
        assert the(world, machine).state != MachineState.RUNNING
        world.until(lambda: the(world, machine).gone)
        assert the(world, machine).state_reason == "Client.UserInitiatedShutdown"
        assert not the(world, machine).taken_by_cloud

    def test_terminating_again_is_no_error(self, world: World) -> None:
        machine = running(world, world.cloud.launch(launch_request(world)))
        for _ in range(3):
            world.cloud.terminate(REGION, [machine.instance_id])
        world.until(lambda: the(world, machine).gone)
        world.cloud.terminate(REGION, [machine.instance_id])

    def test_an_unknown_id_does_not_save_the_others(self, world: World) -> None:
        machine = running(world, world.cloud.launch(launch_request(world)))
        world.cloud.terminate(REGION, ["i-00000000000000bad", machine.instance_id])
        world.until(lambda: the(world, machine).gone)
        world.cloud.terminate(REGION, ["i-00000000000000bad"])
        world.cloud.terminate(REGION, [])

    def test_sweep_waits_for_the_machines(self, world: World) -> None:
        world.cloud.prepare(world.job, "AIDAOWNER", [REGION, "us-west-2"])
        world.cloud.prepare(world.job, "AIDAOWNER", [REGION])
        machine = running(world, world.cloud.launch(launch_request(world)))
        left = world.cloud.sweep(world.job, [REGION, "us-west-2"])
        assert left
        assert all(REGION in thing for thing in left)
        end(world, machine)
        world.until(lambda: world.cloud.sweep(world.job, [REGION, "us-west-2"]) == ())
        assert world.cloud.sweep(world.job, [REGION]) == ()

    def test_the_group_of_a_machine_that_lives_stays(self, world: World) -> None:
        running(world, world.cloud.launch(launch_request(world)))
        left = world.cloud.sweep(world.job, [REGION])
        assert any(thing.startswith(("sg-", "security group")) for thing in left)

    def test_after_a_sweep_the_job_can_be_launched_again(self, world: World) -> None:
        end(world, world.cloud.launch(launch_request(world)))
        world.until(lambda: world.cloud.sweep(world.job, [REGION]) == ())
        world.cloud.prepare(world.job, "AIDAOWNER", [REGION])
        assert world.cloud.launch(launch_request(world, generation=2)).generation == 2

    # ---- images and prices

    def test_an_image_is_looked_up_whole_and_stays_the_same(self, world: World) -> None:
        first = world.cloud.find_image(image(), REGION)
        assert first.image_id.startswith("ami-")
        assert first.root_device == "/dev/sda1"
        assert 1 <= first.root_gib <= image().root_gib
        assert (first.architecture, first.login_user) == ("x86_64", "ubuntu")
        assert world.cloud.find_image(image(), REGION) == first

    def test_an_own_image_is_looked_up_by_its_id(self, world: World) -> None:
        known = world.cloud.find_image(image(), REGION)
        own = replace(image(), ssm_parameter="", own_id=known.image_id)
        assert world.cloud.find_image(own, REGION) == known

    def test_an_image_that_is_not_there_costs_the_pool(self, world: World) -> None:
        own = replace(image(), ssm_parameter="", own_id="ami-00000000000000bad")
        with pytest.raises(PoolUnavailable, match="ami-00000000000000bad in us-east-1"):
            world.cloud.find_image(own, REGION)

    def test_an_image_of_another_architecture_costs_the_pool(self, world: World) -> None:
        known = world.cloud.find_image(image(), REGION)
        own = replace(image(), ssm_parameter="", own_id=known.image_id, architecture="arm64")
        with pytest.raises(PoolUnavailable, match="it is for x86_64"):
            world.cloud.find_image(own, REGION)

    def test_spot_has_a_price_and_on_demand_none(self, world: World) -> None:
        price = world.cloud.price(POOL)
        assert isinstance(price, Decimal)
        assert price > 0
        assert world.cloud.price(ON_DEMAND) is None


def found(world: World, job: str = "") -> tuple[Machine, ...]:
    """The job's machines."""
    return world.cloud.machines(job or world.job, [REGION])


def the(world: World, machine: Machine) -> Machine:
    """The machine as it is shown now."""
    return next(m for m in found(world, machine.job_id) if m.instance_id == machine.instance_id)


def running(world: World, machine: Machine) -> Machine:
    """The machine once it runs."""
    world.until(
        lambda: any(
            m.instance_id == machine.instance_id and m.state is MachineState.RUNNING
            for m in found(world, machine.job_id)
        )
    )
    return the(world, machine)


def end(world: World, machine: Machine) -> None:
    """Terminate the machine and see it gone."""
    running(world, machine)
    world.cloud.terminate(REGION, [machine.instance_id])
    world.until(lambda: the(world, machine).gone)
