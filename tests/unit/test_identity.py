from __future__ import annotations

import hashlib
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from cloudtrain.provisioner.account.facts import Why
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.identity import default_region, identify, stable_owner
from cloudtrain.provisioner.adapters.reading import unread
from cloudtrain.provisioner.errors import AccessError, RegionDenied

LATER = "2031-05-01T10:00:00Z"
LATER_AT = 1_935_396_000.0


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No account and no profile, whatever the environment says."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def configure(tmp_path: Path, text: str) -> None:
    (tmp_path / ".aws").mkdir(exist_ok=True)
    (tmp_path / ".aws" / "config").write_text(text)


@pytest.mark.parametrize(
    ("user_id", "owner"),
    [
        ("AIDAEXAMPLE", "AIDAEXAMPLE"),
        ("123456789012", "123456789012"),
        ("AROAEXAMPLE:ann@example.com", "AROAEXAMPLE:ann@example.com"),
        ("AROAEXAMPLE:i-0123456789abcdef0", "AROAEXAMPLE:i-0123456789abcdef0"),
        ("AROAEXAMPLE:botocore-session-1764504000", "AROAEXAMPLE"),
        ("AROAEXAMPLE:aws-go-sdk-1764504000123456789", "AROAEXAMPLE"),
        ("AROAEXAMPLE:aws-sdk-java-1764504000123", "AROAEXAMPLE"),
        ("AROAEXAMPLE:1764504000123456789", "AROAEXAMPLE"),
    ],
)
def test_a_session_name_that_was_made_up_for_a_login_is_no_part_of_the_owner(user_id: str, owner: str) -> None:
    assert stable_owner(user_id) == owner


def test_keys_without_an_end_have_none() -> None:
    with mock_aws():
        found = identify(Clients("aws"), "us-east-1")
    assert (found.account, found.partition, found.expires_at) == ("123456789012", "aws", None)
    assert found.owner


def test_a_region_that_is_off_is_not_taken_for_wrong_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    with mock_aws():
        clients = Clients("aws")

        def off(**_: Any) -> Any:
            response: Any = {"Error": {"Code": "InvalidClientTokenId", "Message": "The security token is invalid."}}
            raise ClientError(response, "GetCallerIdentity")

        monkeypatch.setattr(clients.client("sts", "eu-south-2"), "get_caller_identity", off)
        with pytest.raises(RegionDenied, match="`aws account enable-region --region-name eu-south-2`") as caught:
            identify(clients, "eu-south-2")
        assert unread(caught.value, "sts:GetCallerIdentity").why is Why.REGION_OFF
        monkeypatch.setattr(clients.client("sts", "us-east-1"), "get_caller_identity", off)
        with pytest.raises(AccessError, match="InvalidClientTokenId") as wrong:
            identify(clients, "eu-south-2")
        assert unread(wrong.value, "sts:GetCallerIdentity").why is Why.INVALID


def test_keys_of_the_environment_end_when_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with mock_aws():
        monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", LATER)
        assert identify(Clients("aws"), "us-east-1").expires_at == LATER_AT


def test_without_credentials_the_way_out_is_named() -> None:
    with pytest.raises(AccessError, match="check your AWS profile"):
        identify(Clients("aws"), "us-east-1")


@pytest.mark.parametrize(("renewing", "end"), [(False, LATER_AT), (True, None)])
def test_a_role_taken_through_sso_ends_with_the_login(
    renewing: bool, end: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloudtrain.provisioner.adapters import identity

    configure(
        tmp_path,
        "[profile work]\nrole_arn = arn:aws:iam::123456789012:role/train\nsource_profile = login\n"
        "[profile login]\nsso_session = corp\nsso_account_id = 123456789012\nsso_role_name = dev\n"
        "[sso-session corp]\nsso_start_url = https://corp.example/start\nsso_region = us-east-1\n",
    )
    monkeypatch.setenv("AWS_PROFILE", "work")
    cache = tmp_path / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    token = {"accessToken": "secret", "expiresAt": LATER} | ({"refreshToken": "r"} if renewing else {})
    (cache / f"{hashlib.sha1(b'corp').hexdigest()}.json").write_text(json.dumps(token))
    assert identity._expires_at(Clients("aws").session()) == end


def test_a_role_with_mfa_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloudtrain.provisioner.adapters import identity

    configure(
        tmp_path,
        "[profile work]\nrole_arn = arn:aws:iam::123456789012:role/train\nsource_profile = keys\n"
        "mfa_serial = arn:aws:iam::123456789012:mfa/ann\n"
        "[profile keys]\naws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = secret\n",
    )
    monkeypatch.setenv("AWS_PROFILE", "work")
    session = Clients("aws").session()
    credentials = session.get_credentials()
    assert credentials is not None
    monkeypatch.setattr(credentials, "_expiry_time", datetime.fromisoformat(LATER))
    assert identity._expires_at(session) == LATER_AT


def test_the_region_is_the_environments_then_the_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_region(Clients("aws")) == "us-east-1"
    configure(tmp_path, "[default]\nregion = eu-west-1\n")
    assert default_region(Clients("aws")) == "eu-west-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert default_region(Clients("aws")) == "eu-north-1"
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert default_region(Clients("aws")) == "us-west-2"
    assert default_region(Clients("local", local_endpoint="http://127.0.0.1:1")) == "us-east-1"


def test_a_profile_that_is_not_there_is_an_access_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "no-such")
    with pytest.raises(AccessError, match="no-such"):
        default_region(Clients("aws"))
    with pytest.raises(AccessError, match="no-such"):
        identify(Clients("aws"), "us-east-1")
