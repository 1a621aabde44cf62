"""Puts the real adapters behind the ports for one job, and chooses between AWS and the embedded cloud."""

from __future__ import annotations

from cloudtrain.provisioner.adapters.caller_address import caller_address
from cloudtrain.provisioner.adapters.clients import Clients
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
from cloudtrain.provisioner.ports import Clock, Store


def wire(home: Home, store: Store, clock: Clock, job_id: str) -> Parts:
    """The parts for one job. Makes no call to the cloud."""
    record = store.get(job_id).record
    reached = reach(home, record, clock)
    return Parts(
        journal=Journal(store, reached.objects, job_id),
        observer=Observer(reached),
        effects=Effects(reached),
        cloud_gone=lambda: gone(home, record),
    )


def reach(home: Home, record: JobRecord, clock: Clock) -> Reach:
    """What a job is reached through. Makes no call to the cloud."""

    def is_dead() -> bool:
        return gone(home, record)

    clients = Clients(record.cloud, local_endpoint=_endpoint(home, record))
    job_dir = home.job_dir(record.job_id)
    return Reach(
        cloud=Ec2Cloud(clients, address=caller_address(record.cloud), is_dead=is_dead),
        remote=ParamikoRemote(),
        objects=S3ObjectStore(clients, bucket=record.bucket, region=record.region, is_dead=is_dead),
        clock=clock,
        files=AttemptFiles(job_dir, record),
        job_dir=job_dir,
    )


def _endpoint(home: Home, record: JobRecord) -> str | None:
    if record.cloud != "local":
        return None
    found = find(home.local_home)
    alive = found is not None and found.id == record.cloud_id
    return found.endpoint_url if found is not None and alive else "http://127.0.0.1:9"  # the discard port: nobody
