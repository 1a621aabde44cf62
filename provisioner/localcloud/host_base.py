"""What both kinds of local host have in common: the boot, the end, and what is read from the folder."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from cloudtrain.provisioner.home import write_private
from cloudtrain.provisioner.localcloud import cloudinit, hostfiles, processes
from cloudtrain.provisioner.localcloud.cloudinit import HostKey
from cloudtrain.provisioner.localcloud.hosts import ENV_INSTANCE, HostSpec


class BaseHost(ABC):
    """A host whose SSH server is left to the subclass. Implements ``hosts.Host``."""

    address = "127.0.0.1"
    endpoint: tuple[str, int]
    user: str

    def __init__(self, spec: HostSpec) -> None:
        """Boot in cloud-init's order: bootcmd, write_files, ssh, and runcmd once the server answers."""
        config = cloudinit.parse(spec.user_data)
        key = cloudinit.load_host_key(config.host_key)
        self._spec = spec
        self._end_lock = threading.Lock()
        self._ended = False
        self.user = hostfiles.account()
        self._files = hostfiles.create(spec)
        self._env = hostfiles.environment(spec, self._files)
        try:
            self._run_script("bootcmd", config.bootcmd)
            cloudinit.write_files(config, self._files.rootfs)
            self._write_host_key(key)
            self.endpoint = (self.address, self._serve(key, config.authorized_keys))
            with self._files.console.open("a", encoding="utf-8") as console:
                console.write(cloudinit.key_report(key, spec.instance_id))
            self._run_script("runcmd", config.runcmd)
        except BaseException:
            self.kill(grace_s=0)
            raise

    @property
    def console(self) -> str:
        """What the boot printed."""
        return self._files.console.read_text(encoding="utf-8", errors="replace")

    def poweroff_requested(self) -> bool:
        """Whether the host asked to be switched off, by a command or by a timer that is due."""
        return self._files.poweroff_requested()

    def step(self) -> int | None:
        """The step that the job's process last reported; None where it reported none."""
        return self._files.step()

    def kill(self, *, grace_s: float) -> None:
        """End every process, then the server, then the folder but for console.log. Idempotent, one at a time."""
        with self._end_lock:
            if self._ended:
                return
            self._stop_listening()
            processes.end(self._processes, grace_s=grace_s)
            self._close()
            processes.end(self._processes, grace_s=0)  # what a client started at the last moment
            self._files.remove()
            self._ended = True

    @abstractmethod
    def set_cut(self, cut: bool) -> None:
        """Cut the host's SSH off the network, or join it again."""

    @abstractmethod
    def _serve(self, key: HostKey, authorized_keys: tuple[str, ...]) -> int:
        """Start the SSH server on ``address``; returns its port once it answers."""

    @abstractmethod
    def _stop_listening(self) -> None:
        """Take no new connections and commands any more. Also called where _serve was not, or failed."""

    @abstractmethod
    def _close(self) -> None:
        """Close what is left of the server, its connections too. No process of the host is left by then."""

    def _processes(self) -> set[int]:
        """The host's processes that a power-off would end."""
        return processes.marked(ENV_INSTANCE, self._spec.instance_id)

    def _write_host_key(self, key: HostKey) -> None:
        path = self._files.host_key
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, key.private)
        path.with_name(f"{path.name}.pub").write_text(f"{key.public}\n", encoding="utf-8")

    def _run_script(self, name: str, script: str) -> None:
        cloudinit.run_script(name, script, env=self._env, home=self._files.home, console=self._files.console)
