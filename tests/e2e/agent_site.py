"""A machine for the agent's tests: a home of its own, S3 by moto over HTTP, and a metadata service that tests write."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

from cloudtrain.provisioner.shipping.snapshot import take
from cloudtrain.trainer.contract import FINAL_PHASES, AgentConfig, AgentStatus, Keys, Latest, status_from_json, to_json
from cloudtrain.trainer.storage import S3Objects

REPOSITORY = Path(__file__).parents[2]
REGION = "us-east-1"


@dataclass
class Metadata:
    """IMDSv2. ``documents``: path below /latest/ -> text. ``expire`` makes every token given so far invalid."""

    documents: dict[str, str] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    refuse_tokens: bool = False

    def notice(self, in_s: float) -> float:
        """Announce an interruption; returns when it comes (whole seconds, as EC2 says it)."""
        at = float(int(time.time() + in_s))
        text = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.documents["meta-data/spot/instance-action"] = json.dumps({"action": "terminate", "time": text})
        return at

    def expire(self) -> None:
        self.tokens.clear()


@contextmanager
def metadata_server() -> Iterator[tuple[Metadata, str]]:
    """A running service and its endpoint, which has a path prefix, as the embedded cloud's has."""
    metadata = Metadata()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            token = f"token-{len(metadata.asked)}"
            metadata.asked.append("PUT")
            if metadata.refuse_tokens or "X-aws-ec2-metadata-token-ttl-seconds" not in self.headers:
                return self.answer(503 if metadata.refuse_tokens else 400, "")
            metadata.tokens.add(token)
            return self.answer(200, token)

        def do_GET(self) -> None:
            path = self.path.removeprefix("/imds/i-1/latest/")
            metadata.asked.append(path)
            if self.headers.get("X-aws-ec2-metadata-token") not in metadata.tokens:
                return self.answer(401, "")
            text = metadata.documents.get(path)
            return self.answer(404, "") if text is None else self.answer(200, text)

        def answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield metadata, f"http://127.0.0.1:{server.server_address[1]}/imds/i-1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def s3_server() -> Iterator[str]:
    """moto's S3 over HTTP; yields its address."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def bucket_at(endpoint: str, name: str) -> S3Objects:
    """A new bucket."""
    client: Any = boto3.session.Session().client(
        "s3", region_name=REGION, endpoint_url=endpoint, aws_access_key_id="testing", aws_secret_access_key="testing"
    )
    client.create_bucket(Bucket=name)
    return S3Objects(client, name)


class Machine:
    """One machine of one attempt."""

    def __init__(self, folder: Path, objects: S3Objects, bucket: str, s3: str, imds: str | None) -> None:
        self.home = folder
        self.root = folder / "cloudtrain"
        self.control = folder / "control"
        self.control.mkdir(parents=True)
        self.objects = objects
        self.bucket = bucket
        self.keys = Keys("jobs/job-1")
        self.metadata: Metadata | None = None
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "LANG": "C",
            "AWS_ENDPOINT_URL": s3,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "CLOUDTRAIN_LOCAL_CONTROL": str(self.control),
            "CLOUDTRAIN_TEST_MACHINE": str(folder),
        }
        if imds is not None:
            self.env["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = imds

    def ship(self, *, run: str, workdir: dict[str, str] | None = None, generation: int = 1, **more: Any) -> None:
        """What one SSH exec puts there."""
        package = self.root / "agent" / "cloudtrain"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text('__version__ = "0"\n')
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / "trainer", package / "trainer", ignore=ignore, dirs_exist_ok=True)
        incoming = self.root / "incoming"
        incoming.mkdir(exist_ok=True)
        more.setdefault("grace_seconds", 4.0)
        config = AgentConfig("job-1", generation, self.bucket, REGION, self.keys.prefix, run, host="local", **more)
        (incoming / "agent.json").write_text(to_json(config), encoding="utf-8")
        if workdir is not None:
            source = self.home / "source"
            source.mkdir(exist_ok=True)
            for name, text in workdir.items():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_text(text, encoding="utf-8")
            take(source, incoming)

    def claim(self, latest: Latest) -> None:
        """What the controller does before a launch."""
        found = self.objects.get(self.keys.latest)
        etag = found[1] if found else None
        self.objects.put(self.keys.latest, to_json(latest).encode(), if_match=etag, if_none_match=etag is None)

    def bootstrap(self) -> dict[str, Any]:
        """Run it; returns its JSON line."""
        script = self.root / "agent/cloudtrain/trainer/agent/bootstrap.py"
        done = subprocess.run(
            [sys.executable, str(script.relative_to(self.root))],
            cwd=self.root,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stderr == ""
        answer: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if answer["ok"] else 1)
        return answer

    def status(self) -> AgentStatus | None:
        """What the controller would read."""
        try:
            return status_from_json((self.root / "run/status.json").read_bytes())
        except FileNotFoundError:
            return None

    def wait(self, done: Callable[[AgentStatus], bool], timeout_s: float = 40.0) -> AgentStatus:
        """The first status that is ``done``."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            status = self.status()
            if status is not None and done(status):
                return status
            if status is not None and status.phase in FINAL_PHASES:
                break
            time.sleep(0.03)
        raise AssertionError(f"never: {self.status()}\n{self.text('agent.log')}\n{self.text('job.log')}")

    def wait_for(self, path: Path, timeout_s: float = 20.0) -> None:
        """Until a file is there."""
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} never came\n{self.text('agent.log')}"
            time.sleep(0.02)

    def text(self, name: str) -> str:
        path = self.root / "run" / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def latest(self) -> Latest | None:
        found = self.objects.get(self.keys.latest)
        return None if found is None else Latest(**json.loads(found[0]))

    @property
    def powered_off(self) -> bool:
        return (self.control / "poweroff").exists()

    def processes(self) -> list[int]:
        """The pids of everything that was started on this machine and lives."""
        mark = f"CLOUDTRAIN_TEST_MACHINE={self.home}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                ours = entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0")
                if ours and (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def destroy(self) -> None:
        """Power cut."""
        for _ in range(100):
            pids = self.processes()
            if not pids:
                return
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        raise AssertionError(f"processes left: {self.processes()}")
