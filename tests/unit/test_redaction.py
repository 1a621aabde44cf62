from __future__ import annotations

import io
import logging

import pytest

from cloudtrain.provisioner.adapters.redaction import Redactor, redacted

KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TOKEN = "IQoJb3JpZ2luX2VjEJr//////////wEaCXVzLWVhc3QtMSJ"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"aws_secret_access_key = {KEY}", "aws_secret_access_key = …"),
        (f'{{"SecretAccessKey": "{KEY}", "Expiration": "x"}}', '{"SecretAccessKey": "…", "Expiration": "x"}'),
        (f"AWS_SESSION_TOKEN={TOKEN} x", "AWS_SESSION_TOKEN=… x"),
        (f"'SessionToken': '{TOKEN}'", "'SessionToken': '…'"),
        (f"token {TOKEN}", "token …"),
        ("key AKIAIOSFODNN7EXAMPLE and ASIAIOSFODNN7EXAMPLE.", "key AKIA… and ASIA…."),
        (
            "GET https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIA%2F2026&X-Amz-Date=1&X-Amz-Signature=0a1b HTTP",
            "GET https://b.s3.amazonaws.com/k?X-Amz-Credential=…&X-Amz-Date=1&X-Amz-Signature=… HTTP",
        ),
        ("https://b.s3.amazonaws.com/k?AWSAccessKeyId=A&Signature=x%3D&Expires=1", None),
        ("clone https://ann:hunter2@example.com/r.git", "clone https://…@example.com/r.git"),
        ("proxy http://:hunter2@10.0.0.1:3128 refused", "proxy http://…@10.0.0.1:3128 refused"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer …"),
        ('"http://127.0.0.1:4566/0a1b/bucket" refused', '"http://127.0.0.1:4566/…" refused'),
        ("a -----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\nBBBB\n-----END OPENSSH PRIVATE KEY----- b", "a … b"),
        ("-----BEGIN RSA PRIVATE KEY-----\nAAAA", "…"),
    ],
)
def test_what_is_hidden(text: str, left: str | None) -> None:
    done = redacted(text)
    if left is not None:
        assert done == left
    for value in (KEY, TOKEN, "hunter2", "x%3D", "AAAA", "0a1b", "abc.def"):
        assert value not in done
    assert redacted(done) == done


@pytest.mark.parametrize(
    "text",
    [
        "launch in aws/us-east-1/use1-az4: InsufficientInstanceCapacity (request 1234-abcd)",
        "https://us-east-2.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-3819A6DF",
        "SSH to ubuntu@203.0.113.7:22: no connection within 20.0 s; it is tried again",
        "ssh_proxy: me@bastion.example.com:2222",
        "the value of TOKEN is not on this computer",
    ],
)
def test_what_stays(text: str) -> None:
    assert redacted(text) == text


def test_a_log_is_cleaned_of_a_traceback_too() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Redactor("%(message)s"))
    log = logging.Logger("one")
    log.addHandler(handler)
    try:
        raise ValueError(f"aws_secret_access_key={KEY}")
    except ValueError:
        log.exception("failed for %s", f"http://u:{KEY}@host/")
    assert KEY not in stream.getvalue()
    assert "ValueError: aws_secret_access_key=…" in stream.getvalue()
