"""What a machine's network holds, run in it: a bucket and a metadata service. A line on stdin, seconds, is a notice."""

from __future__ import annotations

import json
import sys

from cloudtrain.trainer.contract import Keys, Latest, to_json
from tests.e2e.agent_site import bucket_at, metadata_server, s3_server


def main() -> None:
    """Print the environment that leads here, as one JSON line; serve until stdin ends."""
    with s3_server() as s3, metadata_server() as (metadata, imds):
        bucket_at(s3, "bucket").put(Keys("jobs/job-1").latest, to_json(Latest(1)).encode())
        variables = {"AWS_ENDPOINT_URL": s3, "AWS_EC2_METADATA_SERVICE_ENDPOINT": imds}
        variables |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
        sys.stdout.write(json.dumps(variables) + "\n")
        sys.stdout.flush()
        for line in sys.stdin:
            metadata.notice(float(line))


if __name__ == "__main__":
    main()
