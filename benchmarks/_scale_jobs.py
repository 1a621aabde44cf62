"""Jobs for ``scale.py``, as `launch` would have stored them."""

from __future__ import annotations

import time

from cloudtrain.pricing import catalog
from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.localcloud.ready import bucket_name
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.spec import JobSpec, Resources

REGION = "us-east-1"


def add_jobs(home: Home, cloud: client.LocalCloud, number: int) -> None:
    """As `launch` stores them, without a workdir."""
    t4 = [
        o
        for o in catalog.load().offerings(CapacityType.SPOT)
        if o.pool.region == REGION and o.instance.name == "g4dn.xlarge"
    ]
    store = SqliteStore(home.db)
    for n in range(number):
        name = f"scale-{n:04d}"
        spec = JobSpec(name=name, run="python train.py", resources=(Resources(accelerators="T4:1", use_spot=True),))
        store.add(
            JobRecord(
                job_id=f"{name}-abc123",
                spec=spec,
                owner="local",
                results=str(home.root / "results" / name),
                driver=home.id,
                cloud="local",
                cloud_id=cloud.id,
                bucket=bucket(),
                region=REGION,
                offerings=tuple(t4),
                created_at=time.time(),
            )
        )


def bucket() -> str:
    """The embedded account's bucket, which is there from the start."""
    return bucket_name(REGION)
