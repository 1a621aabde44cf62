"""The environment of the user's commands."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from .. import contract
from ..contract import AgentConfig
from .places import Places

ENV_ROOT = "CLOUDTRAIN_ROOT"  # on a local host: the folder that stands in for /
NOTICE_GRACE_S = 90  # of EC2's 120 s, less the margin for the upload


def job_environment(
    config: AgentConfig, places: Places, base: Mapping[str, str], gpus: int, secrets: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What ``setup`` and ``run`` see. ``base`` is the agent's own; ours wins over the user's ``envs`` and secrets."""
    env = {name: value for name, value in base.items() if name not in _AGENT_ONLY}
    if config.login_user is not None:
        env.update(_login(config.login_user))
    env.update(config.envs)
    env.update(secrets or {})
    paths = [str(places.agent), *filter(None, [config.envs.get("PYTHONPATH")])]
    env.update(
        {
            contract.ENV_JOB_ID: config.job_id,
            contract.ENV_ATTEMPT: str(config.generation),
            contract.ENV_CHECKPOINT_DIR: str(places.checkpoints),
            contract.ENV_CHECKPOINT_INTERVAL: config.checkpoint_interval,
            contract.ENV_CHECKPOINT_KEEP: str(config.checkpoint_keep),
            contract.ENV_OUTPUT_DIR: str(places.outputs),
            contract.ENV_PROGRESS: str(places.progress),
            contract.ENV_NOTICE_FILE: str(places.notice),
            contract.ENV_GRACE_SECONDS: f"{config.grace_seconds:g}",
            contract.ENV_NODE_RANK: "0",
            contract.ENV_NODE_IPS: "127.0.0.1",
            contract.ENV_NUM_NODES: "1",
            contract.ENV_NUM_GPUS: str(gpus or 1),
            contract.ENV_MOUNT_ROOT: str(places.rootfs) if config.host == "local" else "",
            # torchrun kills its workers 30 s after SIGTERM (torch 2.13); ours is the deadline, never torchrun's.
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(NOTICE_GRACE_S, int(config.grace_seconds))),
            "PYTHONPATH": os.pathsep.join(paths),  # agent/ first: `python -m cloudtrain.trainer` is the one shipped
        }
    )
    env.update({name: env[ours] for name, ours in _SKYPILOT.items()})
    env.setdefault("PYTHONUNBUFFERED", "1")
    return env


# SkyPilot's names (its "Environment variables" page, read 2026-11), so that its task files run as they are. Its task id
# too stays the same through every recovery. The job file's reader knows these names (provisioner/jobfile/data.py).
_SKYPILOT = {
    "SKYPILOT_TASK_ID": contract.ENV_JOB_ID,
    "SKYPILOT_NODE_RANK": contract.ENV_NODE_RANK,
    "SKYPILOT_NODE_IPS": contract.ENV_NODE_IPS,
    "SKYPILOT_NUM_NODES": contract.ENV_NUM_NODES,
    "SKYPILOT_NUM_GPUS_PER_NODE": contract.ENV_NUM_GPUS,
}
_UNIT = ("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
_AGENT_ONLY = ("PYTHONPATH", contract.ENV_RESUME, *_UNIT)


def _login(user: str) -> dict[str, str]:
    entry = pwd.getpwnam(user)
    return {"HOME": entry.pw_dir, "USER": user, "LOGNAME": user, "SHELL": entry.pw_shell}


def count_gpus(devices: Path = Path("/dev")) -> int:
    """NVIDIA GPUs, by their device files: as many as nvidia-smi names, without its second of waiting."""
    return sum(1 for path in devices.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit())


def venv_of(config: AgentConfig, env: Mapping[str, str]) -> Path | None:
    """The image's virtual environment, activated for the job; None where the machine has no such thing.

    On a local host it lies below the folder that stands in for /.
    """
    if config.venv is None:
        return None
    venv = Path(env.get(ENV_ROOT, "") + config.venv)
    return venv if (venv / "bin" / "activate").is_file() else None
