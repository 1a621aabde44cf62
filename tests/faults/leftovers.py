"""What a job has left: in the embedded cloud, on this computer, and in its two records. Empty is how it must be."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from cloudtrain.provisioner import ledger
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.s3 import S3ObjectStore
from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.controller.takeover import look
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.model import JobRecord, JobStatus
from cloudtrain.provisioner.names import TAG_GENERATION
from tests.e2e.story import Person

BILL_TOLERANCE_S = 3.0  # the controller looks twice a second here, and was dead for a while


def left(person: Person, job_id: str, regions: tuple[str, ...]) -> list[str]:
    """What of the job exists in the regions, by its tag, and of processes on this computer; one word each."""
    clients = Clients("local", local_endpoint=person.cloud().endpoint_url)
    found = [f"process {pid}" for pid in processes(job_id)]
    for region in regions:
        ec2 = clients.client("ec2", region)
        mine: Any = [{"Name": "tag:cloudtrain:job", "Values": [job_id]}]
        for reservation in ec2.describe_instances(Filters=mine)["Reservations"]:
            found += [
                f"{i['InstanceId']} {i['State']['Name']}"
                for i in reservation["Instances"]
                if i["State"]["Name"] != "terminated"
            ]
        found += [g["GroupId"] for g in ec2.describe_security_groups(Filters=mine)["SecurityGroups"]]
        found += [v["VolumeId"] for v in ec2.describe_volumes(Filters=mine)["Volumes"]]
        found += [n["NetworkInterfaceId"] for n in ec2.describe_network_interfaces(Filters=mine)["NetworkInterfaces"]]
        found += [k["KeyName"] for k in ec2.describe_key_pairs()["KeyPairs"]]
        found += [
            r["SpotInstanceRequestId"]
            for r in ec2.describe_spot_instance_requests(Filters=mine)["SpotInstanceRequests"]
            if r["State"] in ("open", "active")
        ]
    s3 = clients.client("s3", "us-east-1")
    for bucket in (b["Name"] for b in s3.list_buckets()["Buckets"]):
        uploads = s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        found += [f"upload of {u['Key']}" for u in uploads if job_id in u["Key"]]
    return found


def processes(job_id: str) -> Iterator[int]:
    """Of this computer, those that run for the job: their environment names it."""
    mark = f"CLOUDTRAIN_JOB_ID={job_id}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


def doubled(person: Person, record: JobRecord) -> list[str]:
    """Generations that ever had more than one machine, and machines of two generations that lived at a time."""
    clients = Clients("local", local_endpoint=person.cloud().endpoint_url)
    mine: Any = [{"Name": "tag:cloudtrain:job", "Values": [record.job_id]}]
    generations: Counter[str] = Counter()
    for region in record.regions:
        for reservation in clients.client("ec2", region).describe_instances(Filters=mine)["Reservations"]:
            for instance in reservation["Instances"]:
                tags = {t["Key"]: t["Value"] for t in instance["Tags"]}
                generations[tags[TAG_GENERATION]] += 1
    wrong = [f"{count} machines of generation {number}" for number, count in generations.items() if count > 1]
    lives = sorted((m["created_at"], m["ended_at"]) for m in _machines(person, record.job_id))
    handed = any(a.handed_over for a in record.attempts)
    for (_, ended), (begun, _) in pairwise(lives):
        if not handed and (ended is None or ended > begun):
            wrong.append("two machines at a time")
    return wrong


def misrecorded(person: Person, job_id: str, absent_s: float = 0.0) -> list[str]:
    """Where the record, its copy in the bucket, the results or the bill of a job that succeeded are not right.

    ``absent_s``: so long nobody looked, and so much more may be on the bill, never less.
    """
    record = SqliteStore(person.home / "jobs.db").get(job_id).record
    clients = Clients("local", local_endpoint=person.cloud().endpoint_url)
    wrong = []
    if record.status is not JobStatus.SUCCEEDED:
        wrong.append(f"status {record.status}: {record.detail}")
    if look(S3ObjectStore(clients, bucket=record.bucket, region=record.region), job_id).record != record:
        wrong.append("the bucket's record is another")
    if not Path(record.results, "count.txt").is_file():
        wrong.append("the results are not home")
    if list((person.home / "jobs" / job_id).glob("secrets.json")):
        wrong.append("the values of its secrets are still here")
    lives = {m["instance_id"]: m for m in _machines(person, job_id)}
    bill = ledger.bill(record, 0.0)
    for attempt, line in zip(record.attempts, bill.lines, strict=True):
        life = lives.pop(attempt.instance_id or "", None)
        if life is None:
            wrong += [f"attempt {attempt.generation} costs {line.usd} without a machine"] if line.usd else []
            continue
        seconds = life["ended_at"] - life["created_at"]
        if not -BILL_TOLERANCE_S <= line.seconds - seconds <= BILL_TOLERANCE_S + 2 + absent_s:
            wrong.append(f"attempt {attempt.generation}: {line.seconds:.1f} s on the bill, {seconds:.1f} s lived")
        if line.usd <= 0 and not line.free:
            wrong.append(f"attempt {attempt.generation} is not on the bill")
    return [*wrong, *(f"{name} is in no attempt" for name in lives)]


def _machines(person: Person, job_id: str) -> list[dict[str, Any]]:
    return [m for m in client.status(person.cloud())["machines"] if m["job"] == job_id]
