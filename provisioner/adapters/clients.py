"""The one place where boto3 clients are made.

On AWS that is the user's own session: environment, profile, SSO. On the embedded cloud it is a session that reads no
variable and no file, with fake keys and one explicit address, so that a local run can't touch an account.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

if TYPE_CHECKING:
    import boto3
    import botocore.session
    from botocore.config import Config
    from botocore.loaders import Loader
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_ssm import SSMClient
    from mypy_boto3_sts import STSClient

LOCAL_KEY = "local"
_FILES = (("AWS_CONFIG_FILE", "~/.aws/config"), ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 20
_LAUNCH_READ_TIMEOUT_S = 55  # the Cloud port promises 60 s; RunInstances is made once and may take long
_ATTEMPTS = 3
_CONNECTIONS = 50  # kept open by a client that a controller's jobs share; more at once are made and closed


class Clients:
    """boto3 clients for one cloud, each made on first use and then shared. Safe to use from several threads.

    ``local_endpoint`` ("http://127.0.0.1:PORT") is needed for the cloud "local", and refused for "aws". On AWS they are
    made anew once the user's configuration or credentials file has changed: keys that expired may have been renewed.
    """

    def __init__(self, cloud: str, *, local_endpoint: str | None = None) -> None:
        if cloud not in ("aws", "local") or (cloud == "local") != (local_endpoint is not None):
            raise ValueError(f"cloud {cloud!r} with local endpoint {local_endpoint!r}")
        self.cloud = cloud
        self._endpoint = local_endpoint
        self._lock = threading.Lock()
        self._session: boto3.Session | None = None
        self._clients: dict[tuple[str, str, bool], Any] = {}
        self._files = _files_seen() if cloud == "aws" else ()

    @overload
    def client(self, service: Literal["ec2"], region: str) -> EC2Client: ...
    @overload
    def client(self, service: Literal["s3"], region: str) -> S3Client: ...
    @overload
    def client(self, service: Literal["ssm"], region: str) -> SSMClient: ...
    @overload
    def client(self, service: Literal["sts"], region: str) -> STSClient: ...
    @overload
    def client(self, service: Literal["iam"], region: str) -> IAMClient: ...
    @overload
    def client(self, service: Literal["kms", "service-quotas"], region: str) -> Any: ...  # no stubs for these two

    def client(self, service: str, region: str) -> Any:
        """The client of a service in a region. It retries throttling and 5xx a few times by itself.

        Raises botocore's own errors where the user's configuration is broken (no such profile).
        """
        return self._get(service, region, launch=False)

    def launcher(self, region: str) -> EC2Client:
        """The EC2 client for RunInstances: one call is one request. Capacity errors are HTTP 500, so botocore's own
        retries would repeat each of them for seconds (measured: 3 tries in standard mode, 5 in legacy)."""
        client: EC2Client = self._get("ec2", region, launch=True)
        return client

    def session(self) -> boto3.Session:
        """The session that every client comes from, made on first use. Raises ProfileNotFound."""
        with self._lock:
            return self._session_made()

    def _session_made(self) -> boto3.Session:
        if self._session is None:
            self._session = _local_session() if self.cloud == "local" else _user_session()
        return self._session

    def _get(self, service: str, region: str, *, launch: bool) -> Any:
        key = (service, region, launch)
        self._follow_files()
        found = self._clients.get(key)
        if found is None:
            with self._lock:  # making a client isn't thread-safe in boto3; using one is
                found = self._clients.get(key)
                if found is None:
                    found = self._clients[key] = self._make(service, region, launch=launch)
        return found

    def _follow_files(self) -> None:
        seen = _files_seen() if self.cloud == "aws" else ()
        if seen != self._files:
            with self._lock:
                self._files, self._session, self._clients = seen, None, {}

    def _make(self, service: str, region: str, *, launch: bool) -> Any:
        make: Any = self._session_made().client  # the stubs know each service's name alone, not a str
        return make(service, region_name=region, endpoint_url=self._endpoint, config=_config(self.cloud, launch=launch))


def _files_seen() -> tuple[tuple[int, int], ...]:
    """When the user's AWS files were last written, and their sizes (AWS SDKs and Tools reference guide, "Location of
    the shared config and credentials files", read 2026-11)."""
    seen = []
    for variable, usual in _FILES:
        try:
            about = Path(os.environ.get(variable) or usual).expanduser().stat()
        except (OSError, RuntimeError):  # not there; or a user without a home
            continue
        seen.append((about.st_mtime_ns, about.st_size))
    return tuple(seen)


def preload() -> None:
    """Load boto3 and what the first clients of a launch need, most of a second of CPU; later clients of this process
    come quickly. Makes no call and reads no configuration."""
    gc.disable()  # boto3 brings tables that stay: looking through them again and again is a sixth of the time
    clients = Clients("local", local_endpoint="http://127.0.0.1:9")  # the discard port: nobody
    for service in ("s3", "ec2", "ssm"):
        clients._get(service, "us-east-1", launch=False)
    gc.freeze()  # they stay for good: no later collection looks at them
    gc.enable()


def _config(cloud: str, *, launch: bool) -> Config:
    from botocore.config import Config  # noqa: PLC0415 - boto3 is loaded when the first client is wanted

    common = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_LAUNCH_READ_TIMEOUT_S if launch else _READ_TIMEOUT_S,
        # "total": max_attempts=1 would still retry once
        retries={"mode": "standard", "total_max_attempts": 1 if launch else _ATTEMPTS},
        user_agent_extra="cloudtrain",
        max_pool_connections=_CONNECTIONS,
    )
    if cloud == "aws":
        return common
    # No proxy stands between us and loopback; FIPS or dual-stack names would be refused with an explicit endpoint.
    return common.merge(
        Config(proxies={}, use_fips_endpoint=False, use_dualstack_endpoint=False, s3={"addressing_style": "path"})
    )


def _user_session() -> boto3.Session:
    import boto3  # noqa: PLC0415
    import botocore.session  # noqa: PLC0415

    return boto3.Session(botocore_session=_sharing(botocore.session.Session()))


def _local_session() -> boto3.Session:
    import boto3  # noqa: PLC0415
    import botocore.session  # noqa: PLC0415
    from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES as VARIABLES  # noqa: PLC0415

    deaf = {name: (None, None, default, convert) for name, (_, _, default, convert) in VARIABLES.items()}
    deaf["config_file"] = deaf["credentials_file"] = (None, None, os.devnull, None)
    core = _sharing(botocore.session.Session(session_vars=deaf))
    return boto3.Session(
        aws_access_key_id=LOCAL_KEY, aws_secret_access_key=LOCAL_KEY, aws_session_token="", botocore_session=core
    )


def _sharing(core: botocore.session.Session) -> botocore.session.Session:
    """The session, with the tables of services that others of this process have read: reading EC2's takes 0.1 s, and
    each job has a session of its own."""
    core.register_component("data_loader", _tables(core.get_config_variable("data_path")))
    return core


@functools.cache
def _tables(data_path: str | None) -> Loader:
    from botocore.loaders import create_loader  # noqa: PLC0415

    return create_loader(data_path)
