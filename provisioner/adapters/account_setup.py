"""Makes what jobs need in an account, and takes it away again: bucket, role, profile."""

from __future__ import annotations

from botocore.exceptions import ClientError

from cloudtrain.provisioner.adapters.aws_errors import code_of, translated
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.identity import Identity
from cloudtrain.provisioner.errors import AccessError
from cloudtrain.provisioner.setup_plan import bucket_names

_NOT_THERE = ("404", "NoSuchBucket", "NotFound")
_REFUSED = ("403", "AccessDenied", "Forbidden")


def find_bucket(clients: Clients, identity: Identity, region: str) -> str | None:
    """The account's bucket of a region; None where there is none. At most two calls; each may be repeated.

    Raises AccessError where a bucket has the name and is another account's, or may not be looked at; CloudUnreachable.
    """
    refused: list[str] = []
    for name in bucket_names(identity.account, region):
        with translated(f"looking for bucket {name}"):
            try:
                clients.client("s3", region).head_bucket(Bucket=name, ExpectedBucketOwner=identity.account)
            except ClientError as error:
                if code_of(error) not in (*_NOT_THERE, *_REFUSED):
                    raise
                if code_of(error) in _REFUSED:
                    refused.append(name)
            else:
                return name
    if refused:
        raise AccessError(
            f"bucket {refused[0]} in {region} is another account's, or you lack s3:ListBucket on it: "
            "`cloudtrain setup --print policies` shows the rights you need"
        )
    return None
