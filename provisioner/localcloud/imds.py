"""The machines' metadata service, IMDSv2, one under a path of its own for each: ``/imds/<instance id>/latest/…``.

Paths and documents: EC2 User Guide, "Access instance metadata", "Spot Instance interruption notices" and "EC2 instance
rebalance recommendations" (2026-11). Served to anybody on loopback, as the real one is to any process on its machine.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudtrain.provisioner.localcloud.calls import machine_token
from cloudtrain.provisioner.localcloud.state import ROLE, Life, LocalState, stamp, user_data_text

MAX_TTL_S = 21600
CREDENTIALS_S = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back over HTTP."""

    status: int
    body: str = ""
    headers: Mapping[str, str] | None = None


_NOT_FOUND = Answer(404, "404 - Not Found")
_UNAUTHORIZED = Answer(401, "401 - Unauthorized")


class Imds:
    """Answers a machine's questions about itself."""

    def __init__(self, state: LocalState) -> None:
        self.state = state

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        """One request. ``path`` begins after ``/imds/``; header names are in lower case."""
        instance_id, _, rest = path.partition("/")
        with self.state.lock:
            life = self.state.lives.get(instance_id)
            if life is None or life.state in ("terminated", "stopped"):
                return _NOT_FOUND
            options = life.machine.metadata_options
            if options.http_endpoint == "disabled":
                return Answer(403, "403 - Forbidden")
            rest = rest.lstrip("/")
            if rest == "latest/api/token":
                return self._token(life, method, headers)
            token = headers.get("x-aws-ec2-metadata-token")
            valid = token is not None and life.imds_tokens.get(token, 0.0) > self.state.clock()
            if not valid and (token is not None or options.http_tokens == "required"):
                return _UNAUTHORIZED
            if method != "GET" or not rest.startswith("latest/"):
                return _NOT_FOUND
            body = self._read(life, rest.removeprefix("latest/").rstrip("/"))
            return _NOT_FOUND if body is None else Answer(200, body)

    def _token(self, life: Life, method: str, headers: Mapping[str, str]) -> Answer:
        ttl = headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        if method != "PUT":
            return Answer(405, "405 - Method Not Allowed")
        if "x-forwarded-for" in headers:  # a proxy must not hand out tokens
            return Answer(403, "403 - Forbidden")
        if not ttl.isascii() or not ttl.isdigit() or not 1 <= int(ttl) <= MAX_TTL_S:
            return Answer(400, "400 - Bad Request")
        now = self.state.clock()
        for old in [t for t, until in life.imds_tokens.items() if until <= now]:
            del life.imds_tokens[old]
        token = secrets.token_urlsafe(42)
        life.imds_tokens[token] = now + int(ttl)
        return Answer(200, token, {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": ttl})

    def _read(self, life: Life, path: str) -> str | None:
        machine = life.machine
        if path == "user-data":
            return user_data_text(machine.user_data) or None
        plain: dict[str, Any] = {
            "meta-data/instance-id": life.instance_id,
            "meta-data/instance-type": machine.instance_type,
            "meta-data/ami-id": machine.image_id,
            "meta-data/instance-life-cycle": "spot" if life.spot is not None else "on-demand",
            "meta-data/placement/availability-zone": machine.placement.zone,
            "meta-data/placement/availability-zone-id": life.zone_id,
            "meta-data/placement/region": life.region,
            "meta-data/local-ipv4": machine.private_ip,
            "meta-data/public-ipv4": machine.public_ip,
        }
        if path in plain:
            return None if plain[path] is None else str(plain[path])
        if path.startswith("meta-data/tags/instance"):
            return _tags(life, path.removeprefix("meta-data/tags/instance").lstrip("/"))
        if path.startswith("meta-data/iam/security-credentials"):
            return self._credentials(life, path.removeprefix("meta-data/iam/security-credentials").lstrip("/"))
        return _events(life, path)

    def _credentials(self, life: Life, role: str) -> str | None:
        profiles = life.machine.ec2_backend.iam_instance_profile_associations
        if life.instance_id not in profiles:
            return None
        name = next((r.name for r in profiles[life.instance_id].iam_instance_profile.roles), ROLE)
        if role == "":
            return str(name)
        if role != name:
            return None
        now = self.state.clock()
        return json.dumps(
            {
                "Code": "Success",
                "LastUpdated": stamp(now),
                "Type": "AWS-HMAC",
                "AccessKeyId": f"ASIALOCAL{life.instance_id[2:13].upper()}",
                "SecretAccessKey": "a-machine-of-the-local-cloud",
                "Token": machine_token(self.state.id, life.instance_id),
                "Expiration": stamp(now + CREDENTIALS_S),
            }
        )


def _events(life: Life, path: str) -> str | None:
    if path == "meta-data/spot/instance-action" and life.taken_at is not None:
        return json.dumps({"action": "terminate", "time": stamp(life.taken_at)})
    if path == "meta-data/spot/termination-time" and life.taken_at is not None:
        return stamp(life.taken_at)
    if path == "meta-data/events/recommendations/rebalance" and life.rebalance_at is not None:
        return json.dumps({"noticeTime": stamp(life.rebalance_at)})
    if path == "meta-data/events/maintenance/scheduled":
        return "[]"
    return None


def _tags(life: Life, key: str) -> str | None:
    if life.machine.metadata_options.instance_metadata_tags != "enabled":
        return None
    tags = life.tags()
    return "\n".join(sorted(tags)) if key == "" else tags.get(key)
