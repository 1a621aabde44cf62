"""The control calls of the embedded cloud, ``/_local/…``: JSON in, JSON out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from cloudtrain.provisioner.localcloud.faults import Fault
from cloudtrain.provisioner.localcloud.machines import Machines
from cloudtrain.provisioner.localcloud.state import Interrupt, Life, LocalState
from cloudtrain.provisioner.names import TAG_JOB, TAG_LOCAL_SSH

NOTE = "local, simulated prices"

Answer = tuple[int, list[tuple[str, str]], bytes]


class _Missing(Exception):
    """What was named does not exist."""


class Control:
    """Answers the ``cloudtrain local`` commands."""

    def __init__(self, state: LocalState, machines: Machines) -> None:
        self.state = state
        self.machines = machines
        self._routes: dict[tuple[str, str], Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            ("GET", "health"): lambda _: {"id": state.id, "pid": os.getpid()},
            ("GET", "status"): lambda _: self._status(),
            ("POST", "stop"): lambda _: self._stop(),
            ("POST", "interrupt"): self._interrupt,
            ("POST", "cutoff"): self._cutoff,
            ("GET", "faults"): lambda _: {"faults": state.faults.documents()},
            ("POST", "faults"): lambda body: state.faults.add(Fault(**body)).document(),
            ("POST", "plants"): self._plant,
            ("DELETE", "plants"): lambda _: {"cleared": state.planted.clear()},
            ("DELETE", "faults"): lambda body: {"cleared": state.faults.clear(body.get("id"))},
        }

    def answer(self, environ: Mapping[str, Any]) -> Answer:
        """One request. 404 for an unknown call, 409 with ``error`` for what can't be done."""
        name = str(environ["PATH_INFO"]).removeprefix("/_local/")
        route = self._routes.get((str(environ["REQUEST_METHOD"]), name))
        if route is None:
            return _json(404, {"error": f"no such call: {name}"})
        try:
            length = int(environ.get("CONTENT_LENGTH") or 0)
            body = json.loads(environ["wsgi.input"].read(length)) if length else {}
            return _json(200, route(body))
        except _Missing as error:
            return _json(404, {"error": str(error)})
        except (LookupError, TypeError, ValueError) as error:
            return _json(409, {"error": str(error.args[0] if error.args else error)})

    def _status(self) -> dict[str, Any]:
        with self.state.lock:
            machines = [self._machine(life) for life in self.state.lives.values()]
            interrupts = [interrupt.document() for interrupt in self.state.interrupts]
        return {
            "id": self.state.id,
            "pid": os.getpid(),
            "options": self.state.options.document(),
            "machines": machines,
            "interrupts": interrupts,
            "faults": self.state.faults.documents(),
            "planted": self.state.planted.documents(),
            "bastion": None if self.machines.bastion is None else asdict(self.machines.bastion.about()),
            "note": NOTE,
        }

    def _machine(self, life: Life) -> dict[str, Any]:
        tags = life.tags()
        return {
            "instance_id": life.instance_id,
            "job": tags.get(TAG_JOB),
            "region": life.region,
            "zone_id": life.zone_id,
            "instance_type": life.machine.instance_type,
            "capacity_type": "spot" if life.spot is not None else "on-demand",
            "state": life.state,
            "state_reason": getattr(life.machine.state_reason, "code", None),
            "spot_status": life.spot.code if life.spot is not None else None,
            "endpoint": tags.get(TAG_LOCAL_SSH) or life.machine.private_ip,
            "step": life.host.step() if life.host is not None and life.live else None,
            "taken_at": life.taken_at,
            "created_at": life.created_at,
            "ended_at": life.ended_at,
        }

    def _stop(self) -> dict[str, Any]:
        self.state.stop.set()
        self.state.wake.set()
        return {"stopping": True}

    def _interrupt(self, body: Mapping[str, Any]) -> dict[str, Any]:
        interrupt = Interrupt(
            job=str(body["job"]),
            at_step=None if body.get("at_step") is None else int(body["at_step"]),
            notice_s=None if body.get("notice_s") is None else float(body["notice_s"]),
            rebalance=bool(body.get("rebalance", False)),
        )
        return {"machine_known": self.machines.request(interrupt)}

    def _plant(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.state.planted.add(str(body["name"]), body.get("region"))
        return {"planted": self.state.planted.documents()}

    def _cutoff(self, body: Mapping[str, Any]) -> dict[str, Any]:
        job, cut = str(body["job"]), bool(body.get("cut", True))
        with self.state.lock:
            found = [life for life in self.state.of_job(job) if life.host is not None]
        if not found:
            raise _Missing(
                f"no machine of {job} runs in the local cloud; `cloudtrain local status` shows those that do"
            )
        for life in found:
            if life.host is not None:
                life.host.set_cut(cut)
        return {"instance_ids": [life.instance_id for life in found]}


def _json(status: int, document: Mapping[str, Any]) -> Answer:
    return status, [("Content-Type", "application/json")], json.dumps(document).encode()
