from __future__ import annotations

import ast
import gc
import http.server
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, ProfileNotFound
from botocore.loaders import JSONFileLoader

from cloudtrain.provisioner.adapters.clients import Clients, preload

REPOSITORY = Path(__file__).parents[2]
MAKERS = {"provisioner/adapters/clients.py", "trainer/storage.py"}


class Recorder(http.server.BaseHTTPRequestHandler):
    """Answers everything with one error, and keeps what came."""

    seen: list[tuple[str, str]]
    status = 500

    def do_POST(self) -> None:
        self.seen.append((self.path, self.headers["Authorization"]))
        assert "X-Amz-Security-Token" not in self.headers
        error = b"<Error><Code>InsufficientInstanceCapacity</Code><Message>no</Message></Error>"
        body = b"<Response><Errors>" + error + b"</Errors></Response>"
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    seen: list[tuple[str, str]] = []
    handler = type("Handler", (Recorder,), {"seen": seen})
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}", seen
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture
def real_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment and files that all lead to somebody's account."""
    (tmp_path / "config").write_text(
        "[default]\nregion = eu-west-1\nendpoint_url = https://real.invalid\ns3 =\n  use_accelerate_endpoint = true\n"
    )
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = AKIAREAL\naws_secret_access_key = real\n")
    for name, value in {
        "AWS_PROFILE": "not-there",
        "AWS_ACCESS_KEY_ID": "AKIAREAL",
        "AWS_SECRET_ACCESS_KEY": "real",
        "AWS_SESSION_TOKEN": "real",
        "AWS_ENDPOINT_URL": "https://real.invalid",
        "AWS_ENDPOINT_URL_EC2": "https://real.invalid",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_USE_FIPS_ENDPOINT": "true",
        "AWS_USE_DUALSTACK_ENDPOINT": "true",
        "AWS_MAX_ATTEMPTS": "9",
        "AWS_RETRY_MODE": "adaptive",
        "HTTP_PROXY": "http://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("real_account")
def test_a_local_client_goes_to_loopback_with_fake_keys_whatever_the_environment_says(
    server: tuple[str, list[tuple[str, str]]],
) -> None:
    endpoint, seen = server
    clients = Clients("local", local_endpoint=endpoint)
    for client in (clients.client("ec2", "us-east-1"), clients.launcher("us-west-2")):
        with pytest.raises(ClientError):
            client.describe_vpcs()
    assert len(seen) == 3 + 1
    assert all("Credential=local/" in authorization for _, authorization in seen)
    for service in ("s3", "ssm", "sts", "iam"):
        made = clients.client(service, "us-east-1")
        assert made.meta.endpoint_url == endpoint


@pytest.mark.usefixtures("home")
def test_capacity_errors_are_http_500_and_a_launch_is_still_one_request(
    server: tuple[str, list[tuple[str, str]]],
) -> None:
    endpoint, seen = server
    clients = Clients("local", local_endpoint=endpoint)
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        clients.launcher("us-east-1").run_instances(MinCount=1, MaxCount=1)
    assert len(seen) == 1


@pytest.mark.usefixtures("home")
def test_on_aws_the_user_s_own_configuration_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "not-there")
    with pytest.raises(ProfileNotFound):
        Clients("aws").client("ec2", "us-east-1")


@pytest.mark.usefixtures("home")
def test_a_client_is_made_once_also_by_many_threads() -> None:
    clients = Clients("local", local_endpoint="http://127.0.0.1:9")
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: clients.client("sts", "us-east-1"), range(16)))
    assert len({id(client) for client in made}) == 1
    assert clients.client("sts", "us-west-2") is not made[0]


@pytest.mark.usefixtures("home")
def test_keys_that_were_renewed_in_their_file_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    clients = Clients("aws")

    def key() -> str:
        clients.client("ec2", "us-east-1")
        credentials = clients.session().get_credentials()
        return "none" if credentials is None else str(credentials.access_key)

    assert key() == "none"
    for name in ("AKIAOLD", "AKIANEWER"):
        file.write_text(f"[default]\naws_access_key_id = {name}\naws_secret_access_key = secret\n")
        assert key() == name
    made = clients.client("ec2", "us-east-1")
    assert clients.client("ec2", "us-east-1") is made


@pytest.mark.usefixtures("home")
def test_the_tables_of_a_service_are_read_once_for_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    Clients("local", local_endpoint="http://127.0.0.1:9").client("ec2", "us-east-1")
    read: list[str] = []
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda _, path: read.append(path))
    Clients("local", local_endpoint="http://127.0.0.1:10").client("ec2", "eu-west-1")
    assert not read


@pytest.mark.usefixtures("real_account")
def test_what_is_loaded_ahead_reads_no_profile() -> None:
    preload()  # AWS_PROFILE names none that is there
    assert gc.isenabled()


@pytest.mark.parametrize(("cloud", "endpoint"), [("aws", "http://127.0.0.1:9"), ("local", None), ("gcp", None)])
def test_a_cloud_and_its_endpoint_belong_together(cloud: str, endpoint: str | None) -> None:
    with pytest.raises(ValueError, match="local endpoint"):
        Clients(cloud, local_endpoint=endpoint)


def makes_clients(source: str) -> bool:
    """Whether Python text makes a boto3 client, resource or session."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, owner = node.func.attr, ast.unparse(node.func.value)
            if name in ("client", "resource", "Session", "create_client") and owner.split(".")[0] in (
                "boto3",
                "botocore",
            ):
                return True
    return False


def test_the_search_finds_what_it_looks_for() -> None:
    assert makes_clients("import boto3\nboto3.client('ec2')")
    assert makes_clients("x = boto3.session.Session().client('s3')")
    assert not makes_clients("clients.client('ec2')")


def test_clients_are_made_in_one_place_and_by_the_agent() -> None:
    folders = ("pricing", "provisioner", "trainer")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    found = {str(p.relative_to(REPOSITORY)) for p in files if makes_clients(p.read_text(encoding="utf-8"))}
    assert found == MAKERS
