"""Who AWS says we are, until when, and in which region by default."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from cloudtrain.provisioner.account.facts import Identity
from cloudtrain.provisioner.adapters.aws_errors import code_of, translated
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.errors import RegionDenied

if TYPE_CHECKING:
    import boto3

DEFAULT_REGION = "us-east-1"

# The names that SDKs make up for an assumed role's session, new with every login: botocore's AssumeRoleProvider, the
# SDKs for Go, JavaScript, Java and Rust (read 2026-11), and bare time stamps (aws-vault).
_MADE_UP = re.compile(r"(botocore-session-|aws-go-sdk-|aws-sdk-[a-z]+(-session)?-|assume-role-from-profile-)?\d{9,}")
# These renew themselves without a person; where their source is a person's login, the chain of profiles says so.
_RENEWED = frozenset(
    {"iam-role", "container-role", "custom-process", "assume-role", "assume-role-with-web-identity", "login"}
)


def identify(clients: Clients, region: str) -> Identity:
    """Ask STS who we are: one call, which needs no permission; a second one where the region is off.

    Raises AccessError without valid credentials, RegionDenied where the region is off for the account.
    """
    with translated(f"asking AWS who you are, in {region}"):
        try:
            caller = clients.client("sts", region).get_caller_identity()
        except ClientError as error:
            if code_of(error) == "InvalidClientTokenId" and _known_elsewhere(clients, region):
                raise RegionDenied(
                    f"region {region} is not enabled for this account: "
                    f"`aws account enable-region --region-name {region}` (some minutes), or use another --region"
                ) from None
            raise
        ends = _expires_at(clients.session()) if clients.cloud == "aws" else None
    return Identity(caller["Account"], caller["Arn"], stable_owner(caller["UserId"]), ends)


def _known_elsewhere(clients: Clients, region: str) -> bool:
    """Whether STS knows the credentials where every account is: in a region that is off, it knows none.

    Source: IAM user guide, "Manage AWS STS in an AWS Region"; aws/aws-sdk-ruby#2850 (2023-05); read 2026-11.
    """
    if region == DEFAULT_REGION or clients.cloud == "local":
        return False
    try:
        clients.client("sts", DEFAULT_REGION).get_caller_identity()
    except (ClientError, BotoCoreError):
        return False
    return True


def default_region(clients: Clients) -> str:
    """The region of AWS_REGION, AWS_DEFAULT_REGION or the profile, in this order; us-east-1 where none is set.

    The AWS CLI reads AWS_REGION, boto3 does not. Raises AccessError where the profile does not exist.
    """
    if clients.cloud == "local":
        return DEFAULT_REGION
    if named := os.environ.get("AWS_REGION"):
        return named
    with translated("reading your AWS profile"):
        return clients.session().region_name or DEFAULT_REGION


def stable_owner(user_id: str) -> str:
    """STS's user id without a session name that was made up for this login: "AROA…:botocore-session-1" -> "AROA…"."""
    who, _, session = user_id.partition(":")
    return who if not session or _MADE_UP.fullmatch(session) else user_id


def _expires_at(session: boto3.Session) -> float | None:
    credentials: Any = session.get_credentials()
    own: datetime | None = getattr(credentials, "_expiry_time", None)  # no public name (botocore 1.44)
    core: Any = session._session
    config = core.full_config
    chain = list(_profiles(config.get("profiles", {}), session.profile_name))
    ends = own.timestamp() if own is not None else None
    if credentials.method not in {*_RENEWED, "sso"} or any("mfa_serial" in profile for profile in chain):
        return ends
    login = next((p for p in chain if "sso_account_id" in p or "sso_role_name" in p), None)
    return _login_end(login, config.get("sso_sessions", {}), ends) if login is not None else None


def _profiles(profiles: Mapping[str, Mapping[str, str]], name: str) -> Iterator[Mapping[str, str]]:
    """The profile and those that it takes its credentials from."""
    seen: set[str] = set()
    while name in profiles and name not in seen:
        seen.add(name)
        yield profiles[name]
        name = profiles[name].get("source_profile", "")


def _login_end(profile: Mapping[str, str], sessions: Mapping[str, Any], own: float | None) -> float | None:
    """When `aws sso login` must be run again; None where its token renews itself, for as long as it may."""
    from botocore.utils import JSONFileCache, SSOTokenLoader, parse_timestamp  # noqa: PLC0415 - only with SSO

    name = profile.get("sso_session")
    url = profile.get("sso_start_url") or sessions.get(name or "", {}).get("sso_start_url", "")
    cache = JSONFileCache(os.path.expanduser("~/.aws/sso/cache"))  # noqa: PTH111 - as botocore makes it
    try:
        token = SSOTokenLoader(cache)(url, session_name=name)
        if name and token.get("refreshToken"):
            return None
        return max(parse_timestamp(token["expiresAt"]).timestamp(), own or 0.0)
    except (BotoCoreError, ValueError):
        return own
