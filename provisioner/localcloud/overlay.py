"""The WSGI application of the embedded cloud: what is ours is answered here, the rest by moto.

``/_local/…`` control · ``/imds/<instance>/…`` the machines' metadata service · everything else is the AWS API. All of
it stands below a first path segment that is the daemon's secret: whoever can launch a machine runs code as this user,
and a port of 127.0.0.1 is open to every user of the computer and to every page in a browser.

An API call is named, prepared for, checked against the injected errors, and handed on; an answer of moto's that is no
AWS answer becomes an error that names the call.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.handlers import format_date_time
from xml.sax.saxutils import escape

from cloudtrain.provisioner.localcloud import ready
from cloudtrain.provisioner.localcloud.account_semantics import Account
from cloudtrain.provisioner.localcloud.authority import Authority
from cloudtrain.provisioner.localcloud.calls import Environ, read_call
from cloudtrain.provisioner.localcloud.client import ACCOUNT
from cloudtrain.provisioner.localcloud.control import Control
from cloudtrain.provisioner.localcloud.faults import Call
from cloudtrain.provisioner.localcloud.imds import Imds
from cloudtrain.provisioner.localcloud.plants import Refused
from cloudtrain.provisioner.localcloud.resources import Resources
from cloudtrain.provisioner.localcloud.state import LocalState

log = logging.getLogger(__name__)

StartResponse = Callable[..., Any]
Headers = list[tuple[str, str]]

UNSERVED = frozenset(
    {
        "StopInstances",
        "StartInstances",
        "RebootInstances",
        "CreateFleet",
        "RequestSpotFleet",
        "RequestSpotInstances",
        "ModifySpotFleetRequest",
        "RunScheduledInstances",
    }
)
"""EC2 calls that moto would answer with machines that nothing stands behind."""

_NOT_ADMITTED = (
    b"<Response><Errors><Error><Code>AuthFailure</Code><Message>The address lacks the local cloud's secret</Message>"
    b"</Error></Errors><RequestID>local</RequestID></Response>"
)

REASONS = {400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 500: "Internal Server Error"}


class Overlay:
    """The application. Thread-safe: it is called from a thread for each connection."""

    def __init__(self, state: LocalState, control: Control) -> None:
        self.state = state
        self._moto: Any = None
        self._moto_ready = threading.Event()
        self._control = control
        self._imds = Imds(state)
        self.account = Account(state)
        self._resources = Resources(state, self.account)
        self._authority = Authority(state, self._resources)
        self._s3_writes = threading.Lock()
        self.ec2_ready = threading.Event()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """One request."""
        if not self._admit(environ):
            return self._reply(start_response, 403, [("Content-Type", "text/xml")], _NOT_ADMITTED)
        path = str(environ["PATH_INFO"])
        if path.startswith("/_local/"):
            return self._reply(start_response, *self._control.answer(environ))
        if path.startswith("/imds/"):
            headers = {
                name[5:].lower().replace("_", "-"): environ[name] for name in environ if name.startswith("HTTP_")
            }
            answer = self._imds.answer(environ["REQUEST_METHOD"], path.removeprefix("/imds/"), headers)
            extra = [*(answer.headers or {}).items(), ("Content-Type", "text/plain")]
            return self._reply(start_response, answer.status, extra, answer.body.encode())
        self.state.last_call_at = self.state.clock()
        return self._aws(environ, start_response)

    def _admit(self, environ: Environ) -> bool:
        """Whether the path begins with the secret, which is then taken away wherever it stands."""
        given, _, rest = str(environ.get("PATH_INFO", "")).lstrip("/").partition("/")
        if not hmac.compare_digest(given.encode(), self.state.secret.encode()):
            return False
        environ["PATH_INFO"] = f"/{rest}"
        for name in ("RAW_URI", "REQUEST_URI"):
            if name in environ:
                environ[name] = str(environ[name]).replace(f"/{self.state.secret}", "", 1) or "/"
        return True

    def serve(self, moto: Any) -> None:
        """Hand API calls to moto's WSGI application from now on; until then they wait."""
        self._moto = moto
        self._moto_ready.set()

    def warm(self) -> None:
        """Load and make what the first calls need, so that they are not slow."""
        for service in ("sts", "s3", "ec2", "ssm", "servicequotas"):
            scope = f"AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host"
            environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "HTTP_AUTHORIZATION": scope, "HTTP_HOST": "127.0.0.1"}
            self._moto.get_application(environ)  # moto's own way to load a service
            self._resources.before(service, "us-east-1", ready.bucket_name("us-east-1"))

    def _aws(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        whole = _buffer(environ)
        self._moto_ready.wait()
        if "/ec2/aws4_request" in environ.get("HTTP_AUTHORIZATION", ""):
            self.ec2_ready.wait()
        call = read_call(environ, self._zone_of)
        start_response = self._dated(start_response, call)
        if not whole:
            text = "The request body terminated unexpectedly"
            return self._error(start_response, call, environ, "IncompleteBody", text, 400)
        refused = self._refused(call, environ)
        fault = self.state.faults.meet(call)
        if fault is not None:
            time.sleep(fault.delay_s)
            if not fault.lost:
                return self._error(start_response, call, environ, fault.code, fault.text(call), fault.http_status())
        if refused is not None:
            return self._error(start_response, call, environ, refused.code, refused.message, refused.status)
        if call.service == "ec2" and call.action in UNSERVED:
            text = f"The local cloud does not serve {call.action}"
            return self._error(start_response, call, environ, "UnsupportedOperation", text, 400)
        status, headers, body = self._ask_moto(environ, call)
        if fault is not None:
            _drop(environ)
        start_response(status, headers)
        return [body]

    def _refused(self, call: Call, environ: Environ) -> Refused | None:
        """Prepare what the call needs; what it runs into, should the account or the caller's rights refuse it."""
        try:
            self._resources.before(call.service, call.fields["region"], call.fields.get("bucket", ""))
            return self.state.planted.refused(call) or self._authority.refused(call, environ)
        except Exception as error:
            log.exception("%s %s could not be prepared", call.service, call.action)
            return Refused("InternalError", 500, f"The local cloud failed before {call.action}: {error!r}")

    def _dated(self, start_response: StartResponse, call: Call) -> StartResponse:
        """``start_response`` with the Date: off, where the caller's clock is to seem so."""

        def start(status: str, headers: Headers, exc_info: Any = None) -> Any:
            date = format_date_time(self.state.clock() + self.state.planted.skew_s(call))
            return start_response(status, [*((n, v) for n, v in headers if n.lower() != "date"), ("Date", date)])

        return start

    def _ask_moto(self, environ: Environ, call: Call) -> tuple[str, Headers, bytes]:
        answer: list[tuple[str, Headers]] = []

        def keep(status: str, headers: Headers, exc_info: Any = None) -> None:
            answer.append((status, headers))

        # moto checks a condition and writes in two steps: one write at a time, or two could both hold If-None-Match.
        # It writes an answer out of the living objects: a machine that changes meanwhile would be shown half changed.
        alone: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if call.service == "s3" and environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            alone = self._s3_writes
        elif call.service == "ec2" and call.action.startswith("Describe"):
            alone = self.state.lock
        name = f"{call.service} {call.action}"
        try:
            with alone:
                body = b"".join(self._moto(environ, keep))
            status, headers = answer[-1]
        except NotImplementedError as error:
            log.warning("%s is not served: %s", name, error)
            return _rendered(call, environ, "NotImplemented", f"The local cloud does not serve {name}: {error}", 501)
        except Exception as error:
            log.exception("%s failed", name)
            text = f"The local cloud failed at {name}: {type(error).__name__}: {error}"
            return _rendered(call, environ, "InternalError", text, 500)
        if status.startswith("500") and b"<html" in body[:200].lower():
            log.error("%s was answered with a page: %r", name, body[:2000])
            return _rendered(call, environ, "InternalError", f"The local cloud failed at {name}", 500)
        if status.startswith("404") and call.service != "s3" and b"<html" in body[:200].lower():
            return _rendered(call, environ, "NotImplemented", f"The local cloud does not serve {name}", 501)
        return status, headers, body

    def _zone_of(self, subnet_id: str, region: str, zone_name: str) -> str | None:
        from moto.ec2.models import ec2_backends  # noqa: PLC0415 - an EC2 call is here, so it is needed anyway

        self._resources.before("ec2", region)
        backend = ec2_backends[ACCOUNT][region]
        for subnets in backend.subnets.values():
            if subnet_id in subnets:
                return str(subnets[subnet_id].availability_zone_id)
        zone = backend.get_zone_by_name(zone_name)
        return None if zone is None else str(zone.zone_id)

    def _error(
        self, start_response: StartResponse, call: Call, environ: Environ, code: str, message: str, status: int
    ) -> Iterable[bytes]:
        line, headers, body = _rendered(call, environ, code, message, status)
        start_response(line, headers)
        return [body]

    def _reply(self, start_response: StartResponse, status: int, headers: Headers, body: bytes) -> Iterable[bytes]:
        start_response(f"{status} {REASONS.get(status, 'OK')}", [*headers, ("Content-Length", str(len(body)))])
        return [body]


def _buffer(environ: Environ) -> bool:
    """Read the body before anything is locked or stored; whether it came whole. A writer that died in the middle (its
    machine was taken) must leave no half object."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if not length and environ.get("HTTP_TRANSFER_ENCODING", "").lower() != "chunked":
        return True
    try:
        body = environ["wsgi.input"].read(length) if length else environ["wsgi.input"].read()
    except OSError:
        body = b""
    environ["wsgi.input"] = io.BytesIO(body)
    return not length or len(body) == length


def _drop(environ: Environ) -> None:
    """Break the connection, so that the caller never learns what its call did."""
    connection = environ.get("werkzeug.socket")
    if isinstance(connection, socket.socket):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _rendered(call: Call, environ: Environ, code: str, message: str, status: int) -> tuple[str, Headers, bytes]:
    kind = "text/xml"
    if environ.get("HTTP_X_AMZ_TARGET"):
        kind = "application/x-amz-json-1.1"
        text = json.dumps({"__type": code, "message": message})
    else:
        inner = f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
        if call.service == "ec2":
            text = f"<Response><Errors><Error>{inner}</Error></Errors><RequestID>local</RequestID></Response>"
        elif call.service == "s3":
            text = f"<Error>{inner}<RequestId>local</RequestId></Error>"
        else:
            text = (
                f"<ErrorResponse><Error><Type>Sender</Type>{inner}</Error><RequestId>local</RequestId></ErrorResponse>"
            )
    body = b"" if environ["REQUEST_METHOD"] == "HEAD" else text.encode()
    headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
    return f"{status} {REASONS.get(status, 'Error')}", headers, body
