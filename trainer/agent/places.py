"""Where everything lies on the machine: the layout of ``contract``, as paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..contract import SECRETS_NAME


@dataclass(frozen=True)
class Places:
    """The folders and files under ``root``, which is ``$HOME/cloudtrain``, absolute."""

    root: Path

    @property
    def agent(self) -> Path:
        """The shipped package's parent: what goes on PYTHONPATH."""
        return self.root / "agent"

    @property
    def deps(self) -> Path:
        """The agent's own wheels; absent where the image has them."""
        return self.root / "deps"

    @property
    def config(self) -> Path:
        """``AgentConfig``, as it arrived."""
        return self.root / "incoming" / "agent.json"

    @property
    def secrets(self) -> Path:
        """The values of the job's secrets; absent for a job without any."""
        return self.root / "incoming" / SECRETS_NAME

    @property
    def snapshot(self) -> Path:
        """The workdir's tar, as it arrived; absent for a job without a workdir."""
        return self.root / "incoming" / "snapshot.tar"

    @property
    def manifest(self) -> Path:
        """What the workdir's tar must hold."""
        return self.root / "incoming" / "snapshot.json"

    @property
    def work(self) -> Path:
        """The job's current directory."""
        return self.root / "work"

    @property
    def checkpoints(self) -> Path:
        """CLOUDTRAIN_CHECKPOINT_DIR."""
        return self.root / "checkpoints"

    @property
    def outputs(self) -> Path:
        """CLOUDTRAIN_OUTPUT_DIR."""
        return self.root / "outputs"

    @property
    def mounts(self) -> Path:
        """Data of ``file_mounts``, where the machine has no faster disk."""
        return self.root / "mounts"

    @property
    def rootfs(self) -> Path:
        """On a local host, what stands in for / under absolute targets of ``file_mounts``."""
        return self.root / "rootfs"

    @property
    def run(self) -> Path:
        """The agent's own files, and those it shares with the job."""
        return self.root / "run"

    @property
    def status(self) -> Path:
        """``AgentStatus``, for the controller."""
        return self.run / "status.json"

    @property
    def progress(self) -> Path:
        """``Progress``, written by the job."""
        return self.run / "progress.json"

    @property
    def notice(self) -> Path:
        """``Notice``, for the job: save and leave."""
        return self.run / "notice.json"

    @property
    def stop(self) -> Path:
        """``Notice``, put here by the controller: stop the job."""
        return self.run / "stop.json"

    @property
    def job_log(self) -> Path:
        """stdout and stderr of ``setup`` and ``run``."""
        return self.run / "job.log"

    @property
    def agent_log(self) -> Path:
        """What the agent has to say."""
        return self.run / "agent.log"

    @property
    def lock(self) -> Path:
        """Held (flock) by the agent while it lives; holds its generation."""
        return self.run / "agent.lock"

    @property
    def ballast(self) -> Path:
        """Room kept for the status of a full disk."""
        return self.run / "ballast"

    def create(self) -> None:
        """Make the folders that the job and the agent write to. Raises OSError."""
        for folder in (self.run, self.work, self.checkpoints, self.outputs):
            folder.mkdir(parents=True, exist_ok=True)
