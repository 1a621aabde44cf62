"""The way into an account: whose it is, and the bucket that its jobs live in. On AWS, or in the embedded cloud."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.provisioner.account.facts import Identity
from cloudtrain.provisioner.adapters.account_setup import bucket_region, find_bucket
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.identity import default_region, identify
from cloudtrain.provisioner.adapters.s3 import S3ObjectStore
from cloudtrain.provisioner.errors import AccessError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.localcloud.client import ensure_up


@dataclass(frozen=True, slots=True)
class Entry:
    """An account that may be asked. ``region`` is where its bucket is, or would be made."""

    cloud: str  # "aws" | "local"
    clients: Clients
    identity: Identity
    region: str
    cloud_id: str | None = None  # the embedded cloud's; None on AWS


@dataclass(frozen=True, slots=True)
class Access:
    """An account that can hold jobs: its bucket is there."""

    entry: Entry
    bucket: str

    @property
    def objects(self) -> S3ObjectStore:
        """The bucket."""
        return S3ObjectStore(self.entry.clients, bucket=self.bucket, region=self.entry.region)


def enter(cloud: str, home: Home, *, region: str | None = None) -> Entry:
    """Ask who we are; starts the embedded cloud where that is meant. Raises AccessError without valid credentials."""
    local = ensure_up(home.local_home) if cloud == "local" else None
    clients = Clients(cloud, local_endpoint=local.endpoint_url if local is not None else None)
    home_region = region or default_region(clients)
    return Entry(cloud, clients, identify(clients, home_region), home_region, local.id if local is not None else None)


def open_bucket(entry: Entry, *, bucket: str | None = None) -> Access:
    """Find the account's bucket, or take the one that is named. Raises AccessError where there is none."""
    if bucket is not None:
        where = bucket_region(entry.clients, entry.identity, bucket, entry.region)
        return Access(Entry(entry.cloud, entry.clients, entry.identity, where, entry.cloud_id), bucket)
    found = find_bucket(entry.clients, entry.identity, entry.region)
    if found is None:
        flags = " --cloud local" if entry.cloud == "local" else f" --region {entry.region}"
        raise AccessError(
            f"account {entry.identity.account} has no cloudtrain bucket in {entry.region}: "
            f"make it with `cloudtrain setup{flags}`; where it is in another region or has another name: --bucket"
        )
    return Access(entry, found)
