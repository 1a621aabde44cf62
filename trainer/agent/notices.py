"""Watching the machine's metadata service for an interruption notice. In a thread: it may be slow or silent.

Notices are best effort on EC2's side: periodic checkpoints carry the guarantee, this saves the minutes in between.
Paths and the advice to poll every 5 s: AWS, "Spot Instance interruption notices" and "EC2 instance rebalance
recommendations", 2026-11. Tokens (IMDSv2): AWS, "Use the Instance Metadata Service", 2026-11.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

logger = logging.getLogger(__name__)

ENV_ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
DEFAULT_ENDPOINT = "http://169.254.169.254"
TOKEN_TTL_S = 21600  # the longest that the service grants
TIMEOUT_S = 2.0
ALARM_AFTER = 12  # failed polls in a row
_ACTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class ImdsError(Exception):
    """The metadata service did not answer, or not sensibly. ``refused``: nothing listens there."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True)
class Interruption:
    """EC2 takes the machine at ``at`` (Unix seconds). ``action``: terminate, stop or hibernate."""

    action: str
    at: float


class Imds:
    """IMDSv2 at an endpoint, which may have a path prefix."""

    def __init__(self, endpoint: str) -> None:
        parts = urllib.parse.urlsplit(endpoint)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._prefix = parts.path.rstrip("/")
        self._token: str | None = None

    def get(self, path: str) -> str | None:
        """The document at ``path``; None where there is none (404). Raises ImdsError."""
        for _ in range(2):
            if self._token is None:
                self._token = self._new_token()
            status, body = self._request("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if status == 401:
                self._token = None  # it expired
                continue
            if status == 404:
                return None
            if status == 200:
                return body
            raise ImdsError(f"the metadata service answered {status} for {path}")
        raise ImdsError("the metadata service refuses its own tokens (401)")

    def interruption(self) -> Interruption | None:
        """The notice, if there is one. Raises ImdsError."""
        text = self.get(_ACTION)
        if text is None:
            return None
        try:
            raw = json.loads(text)
            return Interruption(str(raw["action"]), _unix(raw["time"]))
        except (ValueError, KeyError, TypeError):
            raise ImdsError(f"{_ACTION} can't be read: {text[:200]!r}") from None

    def rebalance(self) -> float | None:
        """When EC2 recommended to leave (Unix seconds), if it did. Raises ImdsError."""
        text = self.get(_REBALANCE)
        if text is None:
            return None
        try:
            return _unix(json.loads(text)["noticeTime"])
        except (ValueError, KeyError, TypeError):
            raise ImdsError(f"{_REBALANCE} can't be read: {text[:200]!r}") from None

    def _new_token(self) -> str:
        header = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
        status, body = self._request("PUT", "/latest/api/token", header)
        if status != 200:
            raise ImdsError(f"the metadata service gave no token (status {status})")
        return body

    def _request(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, self._prefix + path, headers=dict(headers))
            response = connection.getresponse()
            return response.status, response.read(65536).decode("utf-8", "replace")
        except ConnectionRefusedError as error:
            raise ImdsError(f"the metadata service is not there: {error}", refused=True) from None
        except (OSError, http.client.HTTPException) as error:
            raise ImdsError(f"the metadata service did not answer: {error}") from None
        finally:
            connection.close()


def _unix(text: str) -> float:
    """Unix seconds of "2026-11-30T10:00:00Z"; always UTC there. Raises ValueError, TypeError."""
    return datetime.fromisoformat(text.removesuffix("Z") + "+00:00").timestamp()


class Watcher:
    """Owns the polling thread. The supervisor reads the attributes."""

    def __init__(self, imds: Imds, every_s: float) -> None:
        self._imds = imds
        self._every_s = every_s
        self.interruption: Interruption | None = None
        self.rebalance_at: float | None = None
        self.failures = 0
        self.refused_since: float | None = None  # monotonic

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="notices", daemon=True).start()

    def poll(self) -> None:
        """Ask once. Never raises for a service that fails: that is counted."""
        try:
            self.interruption = self._imds.interruption() or self.interruption
            if self.rebalance_at is None:
                self.rebalance_at = self._imds.rebalance()
            self.failures = 0
            self.refused_since = None
        except ImdsError as error:
            self.failures += 1
            self.refused_since = (self.refused_since or time.monotonic()) if error.refused else None
            if self.failures in (1, ALARM_AFTER):
                logger.warning("notices: %s", error)

    def lines(self) -> tuple[str, ...]:
        """What the status should say about it."""
        said = []
        if self.failures >= ALARM_AFTER:
            said.append(f"notices: the metadata service failed {self.failures} times; an interruption may come unseen")
        if self.rebalance_at is not None:
            said.append("rebalance: EC2 expects to take this machine before long")
        return tuple(said)

    def _run(self) -> None:
        while True:
            self.poll()
            time.sleep(self._every_s)
