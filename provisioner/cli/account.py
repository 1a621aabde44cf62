"""The account that a command works in, as the configuration names it."""

from __future__ import annotations

from cloudtrain.provisioner.access import Access, enter, open_bucket
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.settings import Sources


def open_account(cloud: str, home: Home) -> Access:
    """The account, and the bucket that the settings `bucket` and `region` name. Raises AccessError."""
    if cloud == "local":
        return open_bucket(enter(cloud, home))
    found = Sources.here().found()
    region, bucket = found.get("region"), found.get("bucket")
    entry = enter(cloud, home, region=region.value if region is not None else None)
    return open_bucket(entry, bucket=bucket.value if bucket is not None else None)
