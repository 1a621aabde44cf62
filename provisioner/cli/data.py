"""``file_mounts`` at the terminal: looked at for the plan, uploaded with a line that tells how far it is."""

from __future__ import annotations

import sys
import textwrap
import time
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import click
from tabulate import tabulate

from cloudtrain.provisioner.cli.words import counted, dollars, duration, printable, say, size
from cloudtrain.provisioner.errors import CloudUnreachable
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.launch.launching import Prepared, ours
from cloudtrain.provisioner.shipping import mounts
from cloudtrain.provisioner.shipping.mounts import DataPlan, Sized
from cloudtrain.trainer.contract import Mount

if TYPE_CHECKING:
    from cloudtrain.provisioner.adapters.clients import Clients
    from cloudtrain.provisioner.launch.access import Access
    from cloudtrain.provisioner.launch.mounting import Looked

OMITTED_SHOWN = 3
_EVERY_S = 10.0  # a line, where there is no terminal to redraw it on
_REDRAW_S = 0.2


@dataclass(frozen=True, slots=True)
class Data:
    """What was found, for the plan, and for the upload."""

    looked: tuple[Looked, ...]
    plan: DataPlan


def look_for_plan(prepared: Prepared, home: Home) -> DataPlan | None:
    """What is known without starting anything; a bucket that can't be asked is said to be unknown. None: no mounts."""
    if not prepared.spec.file_mounts:
        return None
    from cloudtrain.provisioner.adapters.clients import Clients  # noqa: PLC0415 - boto3, only for jobs with data
    from cloudtrain.provisioner.adapters.identity import DEFAULT_REGION, default_region  # noqa: PLC0415
    from cloudtrain.provisioner.localcloud.client import find  # noqa: PLC0415

    if prepared.cloud == "aws":
        clients = Clients("aws")
        return _look(prepared, home, clients, default_region(clients), strict=False).plan
    local = find(home.local_home)
    endpoint = Clients("local", local_endpoint=local.endpoint_url) if local is not None else None
    return _look(prepared, home, endpoint, DEFAULT_REGION, strict=False).plan


def look_for_launch(prepared: Prepared, home: Home, access: Access) -> Data | None:
    """What every attempt will get. Raises UsageError, NotFound, AccessError, CloudUnreachable. None: no mounts."""
    if not prepared.spec.file_mounts:
        return None
    return _look(prepared, home, access.entry.clients, access.entry.region, strict=True)


def _look(prepared: Prepared, home: Home, clients: Clients | None, region: str, *, strict: bool) -> Data:
    from cloudtrain.provisioner.adapters.images import image_for  # noqa: PLC0415
    from cloudtrain.provisioner.launch import mounting  # noqa: PLC0415 - boto3

    def asked() -> Clients:
        if clients is None:
            raise CloudUnreachable("not known: the local cloud is not up (`cloudtrain local up`)")
        return clients

    spec, offerings = prepared.spec, prepared.plan.offerings
    looked = mounting.look(spec.file_mounts, asked, region, leave_out=ours(prepared, home), strict=strict)
    sized = tuple(item.sized for item in looked)
    images = [image_for(o.pool.instance_type, prepared.cloud, spec.aws) for o in offerings]
    roots = [image.root_gib for image in images if not isinstance(image, str)]
    mounts.require_room(sized, offerings, max(spec.disk_size_gib or 0, *roots, 0))
    found = mounts.estimate(sized, offerings, region, throughput_mib_s=spec.aws.volume_throughput)
    return Data(looked, DataPlan(sized, found))


def text(plan: DataPlan) -> str:
    """Each mount, then what they cost."""
    rows = [(printable(item.mount.target), _size(item), printable(item.mount.source)) for item in plan.sized]
    table = tabulate(rows, tablefmt="plain", disable_numparse=True)
    lines = ["data, on each machine before setup and run:", *(f"  {line}" for line in table.splitlines())]
    for item in plan.sized:
        if item.trouble is not None:
            lines += _wrapped(f"  {printable(item.trouble)}")
        if item.omitted:
            named = ", ".join(printable(path) for path in item.omitted[:OMITTED_SHOWN])
            more = len(item.omitted) - OMITTED_SHOWN
            lines.append(
                f"  {printable(item.mount.target)} leaves out {named}" + (f", {more} more" if more > 0 else "")
            )
    found = plan.estimate
    restore = f"about {duration(found.restore_s)}" if found.restore_s is not None else "time not known"
    dearer = found.elsewhere_usd is not None and found.elsewhere_usd > max(found.transfer_usd or 0, Decimal("0.01"))
    elsewhere = f", up to {_money(found.elsewhere_usd)} in other regions" if dearer else ""
    lines += _wrapped(f"restore: {restore} on each machine; transfer: {_money(found.transfer_usd)}{elsewhere}")
    if found.upload_s > 0:
        month = found.storage_usd_per_month
        kept = f"; kept until you delete it: {_money(month)} a month" if month is not None else ""
        time_s = duration(found.upload_s)
        lines += _wrapped(f"upload: about {time_s} at 100 Mbit/s, less what is there already; free of charge{kept}")
    return "\n".join(lines)


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, 80, subsequent_indent="  ")


def _money(usd: Decimal | None) -> str:
    if usd is None:
        return "price not known"
    if 0 < usd < Decimal("0.01"):
        return "under $0.01"
    return "free" if usd == 0 else dollars(float(usd))


def _size(item: Sized) -> str:
    if item.trouble is not None:
        return "size not known"
    where = f", in {item.region}" if item.region is not None else ""
    return f"{counted(item.files, 'file')}, {size(item.bytes)}{where}"


def upload(data: Data | None, job_id: str, access: Access) -> tuple[Mount, ...]:
    """Send what is missing, and write down what each attempt gets. Raises UsageError, AccessError, CloudUnreachable,
    KeyboardInterrupt: then nothing was launched, which is said."""
    if data is None:
        return ()
    from cloudtrain.provisioner.adapters.data_bucket import ContentStore  # noqa: PLC0415
    from cloudtrain.provisioner.launch import mounting  # noqa: PLC0415 - boto3

    line = _Line(sum(item.bytes for item in data.plan.sized if item.local))
    entry = access.entry
    store = ContentStore(entry.clients, access.bucket, entry.region, moved=line.moved)
    try:
        found = mounting.upload(data.looked, job_id, store)
    except KeyboardInterrupt:
        line.end()
        say(f"nothing was launched; {size(store.sent_bytes)} of data were uploaded, and the next launch uses them")
        raise
    line.end()
    if line.total:
        say(f"data: {size(store.sent_bytes)} uploaded, {size(line.total - store.sent_bytes)} were there already")
    return found


class _Line:
    """How far the upload is: a line that is redrawn on a terminal, now and then a new one elsewhere."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._done = 0
        self._begun = self._said = time.monotonic()
        self._redraws = sys.stderr.isatty()

    def moved(self, count: int) -> None:
        """So many bytes more. Called from several threads; a number that is off for a moment does no harm."""
        self._done += count
        now = time.monotonic()
        if now - self._said < (_REDRAW_S if self._redraws else _EVERY_S):
            return
        self._said = now
        rate = self._done / (now - self._begun)
        left = duration((self.total - self._done) / rate) if rate > 0 else "?"
        words = f"uploading data: {size(self._done)} of {size(self.total)}, {size(int(rate))}/s, {left} left"
        click.echo(f"\r{words:<79}" if self._redraws else words, err=True, nl=not self._redraws)

    def end(self) -> None:
        """Clear it."""
        if self._redraws and self._done:
            click.echo(f"\r{'':<79}\r", err=True, nl=False)
