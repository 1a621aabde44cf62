"""The account that a command works in, as the configuration names it."""

from __future__ import annotations

from cloudtrain.provisioner.account.facts import Bucket, Identity, Wants
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.identity import DEFAULT_REGION, default_region
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.launch.access import Access, Entry, enter, open_bucket
from cloudtrain.provisioner.launch.preflight import Ground, Verdict, judge
from cloudtrain.provisioner.localcloud.client import ensure_up
from cloudtrain.provisioner.settings import Sources


def ground(cloud: str, home: Home) -> Ground:
    """What is to be looked at; starts the embedded cloud where that is meant. Raises AccessError for a broken AWS
    profile."""
    if cloud == "local":
        local = ensure_up(home.local_home)
        clients = Clients("local", local_endpoint=local.endpoint_url)
        return Ground(clients, DEFAULT_REGION, egress=local.ssh_probe, cloud_id=local.id)
    found = Sources.here().found()
    region, bucket = found.get("region"), found.get("bucket")
    clients = Clients("aws")
    return Ground(
        clients,
        region.value if region is not None else default_region(clients),
        bucket.value if bucket is not None else None,
    )


def open_checked(cloud: str, home: Home, wants: Wants) -> tuple[Verdict, Access | None]:
    """What the checks say of the account, and the way into it and its bucket; None where they refuse. Raises
    AccessError."""
    looked_at = ground(cloud, home)
    verdict = judge(looked_at, wants)
    if verdict.refusals:
        return verdict, None
    known = verdict.facts
    if known is not None and isinstance(known.caller, Identity) and isinstance(known.bucket, Bucket):
        found = known.bucket
        if found.name is not None and found.denied is None:
            where = found.region or looked_at.region
            return verdict, Access(Entry(cloud, looked_at.clients, known.caller, where, looked_at.cloud_id), found.name)
    entry = enter(cloud, home, region=looked_at.region)
    return verdict, open_bucket(entry, bucket=looked_at.bucket)
