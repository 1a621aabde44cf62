"""Puts the real adapters behind the ports for one job, and chooses between AWS and the embedded cloud.

Jobs of one process share what they can (``Shared``): the session with its credentials, clients and their connections,
and the calls that list and end machines.
"""

from __future__ import annotations

import threading

from cloudtrain.provisioner.adapters.caller_address import caller_address, kept_for
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.coalesce import Turns
from cloudtrain.provisioner.adapters.ec2 import Ec2Cloud
from cloudtrain.provisioner.adapters.s3 import S3ObjectStore
from cloudtrain.provisioner.adapters.ssh import ParamikoRemote
from cloudtrain.provisioner.controller.attempt_files import AttemptFiles
from cloudtrain.provisioner.controller.effects import Effects
from cloudtrain.provisioner.controller.journal import Journal
from cloudtrain.provisioner.controller.loop import Parts
from cloudtrain.provisioner.controller.losses import gone
from cloudtrain.provisioner.controller.observe import Observer
from cloudtrain.provisioner.controller.reach import Reach
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.localcloud.client import find
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.ports import Clock, Remote, Store

# RunInstances: requests are refilled by 2 a second (runs-on/runs-on#29), machines too once 1,000 are spent (EC2
# Developer Guide, "Request throttling for the Amazon EC2 API", read 2026-11).
LAUNCHES_PER_S = 2.0
LAUNCHES_AT_ONCE = 5
TURN_PATIENCE_S = 10.0
ADDRESS_S = 10.0


class Shared:
    """What the jobs of one process have in common. Thread-safe."""

    def __init__(self, remote: Remote | None = None) -> None:
        self.remote = ParamikoRemote() if remote is None else remote
        self._lock = threading.Lock()
        self._clouds: dict[tuple[str, str | None, str | None], tuple[Clients, Ec2Cloud]] = {}
        self._turns: dict[str, Turns] = {}

    def cloud(self, home: Home, record: JobRecord) -> tuple[Clients, Ec2Cloud]:
        """The clients and the Cloud port for the account, or the embedded cloud, that the job is in."""
        endpoint = _endpoint(home, record)
        with self._lock:
            found = self._clouds.get((record.cloud, record.cloud_id, endpoint))
            if found is None:
                clients = Clients(record.cloud, local_endpoint=endpoint)
                address = kept_for(ADDRESS_S, caller_address(record.cloud))
                cloud = Ec2Cloud(clients, address=address, is_dead=lambda: gone(home, record))
                found = self._clouds[record.cloud, record.cloud_id, endpoint] = (clients, cloud)
            return found

    def turn(self, cloud: str, region: str) -> bool:
        """Whether one more machine may be asked for now: waits a little for that. The embedded cloud has no limit."""
        if cloud == "local":
            return True
        with self._lock:
            turns = self._turns.setdefault(region, Turns(LAUNCHES_PER_S, LAUNCHES_AT_ONCE))
        return turns.take(TURN_PATIENCE_S)


def wire(home: Home, store: Store, clock: Clock, job_id: str, shared: Shared) -> Parts:
    """The parts for one job. Makes no call to the cloud."""
    record = store.get(job_id).record
    reached = reach(home, record, clock, shared)
    return Parts(
        journal=Journal(store, reached.objects, job_id),
        observer=Observer(reached),
        effects=Effects(reached),
        cloud_gone=lambda: gone(home, record),
    )


def reach(home: Home, record: JobRecord, clock: Clock, shared: Shared | None = None) -> Reach:
    """What a job is reached through. Makes no call to the cloud."""
    shared = Shared() if shared is None else shared
    clients, cloud = shared.cloud(home, record)
    job_dir = home.job_dir(record.job_id)
    return Reach(
        cloud=cloud,
        remote=shared.remote,
        objects=S3ObjectStore(clients, record.bucket, record.region, is_dead=lambda: gone(home, record)),
        clock=clock,
        files=AttemptFiles(job_dir, record),
        job_dir=job_dir,
        turn=lambda region: shared.turn(record.cloud, region),
    )


def _endpoint(home: Home, record: JobRecord) -> str | None:
    if record.cloud != "local":
        return None
    found = find(home.local_home)
    alive = found is not None and found.id == record.cloud_id
    return found.endpoint_url if found is not None and alive else "http://127.0.0.1:9"  # the discard port: nobody
