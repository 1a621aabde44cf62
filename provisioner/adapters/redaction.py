"""Takes out of a text what nobody may read: keys, tokens, signed URLs, passwords in URLs. Pure.

For messages of other people's libraries, on their way to a person or into a log. What a job itself prints is its own
affair: its log is the user's, and its last line is cleaned of the job's secrets by the agent.

Forms: IAM user guide ("Unique identifiers": AKIA, ASIA), S3 API reference (query string of a signed URL), 2026-11.
"""

from __future__ import annotations

import logging
import re

_HIDDEN = "…"
_FORMS = (
    # the embedded cloud's own secret, in its endpoint's path
    (re.compile(r"(https?://127\.0\.0\.1:\d+)/[^\s\"']*"), rf"\1/{_HIDDEN}"),
    (re.compile(r"(://)[^/\s@:]*:[^\s@]+@"), rf"\1{_HIDDEN}@"),
    (
        re.compile(r"(?i)\b(X-Amz-(?:Signature|Credential|Security-Token)|Signature|AWSAccessKeyId)=[^&\s,'\"]+"),
        rf"\1={_HIDDEN}",
    ),
    (
        re.compile(
            r"(?i)(\b(?:aws_)?(?:secret_?access_?key|session_?token|security_?token)\b[\"']?\s*[:=]\s*[\"']?)[^\s\"',}]+"
        ),
        rf"\1{_HIDDEN}",
    ),
    (
        re.compile(
            r"(?i)(\b(?:authorization|x-amz-security-token)[\"']?\s*[:=]\s*[\"']?(?:bearer |basic )?)[^\s\"',}]+"
        ),
        rf"\1{_HIDDEN}",
    ),
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(?:IQoJ|FwoG|FQoG|AQoD)[A-Za-z0-9+/=_-]{20,}"), _HIDDEN),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), _HIDDEN),
)


def redacted(text: str) -> str:
    """The text without what has the form of a key, a token, a signature or a password."""
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


class Redactor(logging.Formatter):
    """A log's formatter: tracebacks and all are cleaned just before they are written."""

    def format(self, record: logging.LogRecord) -> str:
        """As usual, then cleaned."""
        return redacted(super().format(record))
