"""What every kind of local host does, over a real paramiko client."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.localcloud import cloudinit, host_sshd
from cloudtrain.provisioner.localcloud.hosts import HostSpec, start_host
from tests.ssh.hostkit import KINDS, Rig, alive, eventually, require, user_data

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    require(request.param)
    made = Rig(request.param, tmp_path / "a host", env={"GREETING": 'it\'s "here" $HOME'})
    yield made
    made.close()


def test_a_command_has_its_exit_code_and_both_outputs_apart(rig: Rig) -> None:
    answer = rig.run("echo out; echo err >&2; exit 7")
    assert (answer.code, answer.out, answer.err) == (7, "out\n", "err\n")


def test_a_command_ended_by_a_signal_has_no_exit_code(rig: Rig) -> None:
    assert rig.run("kill -9 $$").code == -1


def test_many_short_commands_on_one_connection(rig: Rig) -> None:
    client = rig.connect()
    assert [rig.run(f"exit {n}", client=client).code for n in range(40)] == list(range(40))


def test_commands_run_side_by_side_on_one_connection(rig: Rig) -> None:
    client = rig.connect()
    os.mkfifo(rig.root / "home" / "fifo")
    answers: list[str] = []
    reader = threading.Thread(target=lambda: answers.append(rig.run("cat fifo", client=client).out))
    reader.start()
    rig.run("echo hello > fifo", client=client)  # blocks for ever unless the reader runs beside it
    reader.join(10)
    assert answers == ["hello\n"]


def test_stdin_streams_to_its_end(rig: Rig) -> None:
    block = os.urandom(1 << 20)
    answer = rig.run("wc -c; echo done >&2", stdin=block * 20)
    assert (answer.code, answer.out.strip(), answer.err) == (0, str(20 << 20), "done\n")


def test_output_streams_to_its_end(rig: Rig) -> None:
    assert len(rig.run("head -c 20000000 /dev/zero").out) == 20_000_000


def test_stdin_that_nobody_reads_is_no_deadlock(rig: Rig) -> None:
    client = rig.connect()
    channel = client.get_transport().open_session()  # type: ignore[union-attr]
    channel.settimeout(10)
    channel.exec_command("exit 5")
    assert channel.recv_exit_status() == 5


def test_environment_is_built_from_nothing(rig: Rig) -> None:
    lines = rig.run("env -0").out.split("\0")
    env = dict(line.split("=", 1) for line in lines if line)
    home = rig.root / "home"
    assert env["HOME"] == str(home)
    assert env["GREETING"] == 'it\'s "here" $HOME'
    assert env["CLOUDTRAIN_LOCAL_INSTANCE"] == rig.spec.instance_id
    assert env["CLOUDTRAIN_LOCAL_CLOUD"] == rig.spec.cloud_id
    assert env["CLOUDTRAIN_LOCAL_CONTROL"] == str(rig.root / "control")
    assert env["PATH"].startswith(f"{home}/bin:{home}/venv/bin:/usr")
    by_the_shell = {"PWD", "SHLVL", "_", "OLDPWD"}
    assert set(env) - by_the_shell == {
        *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "GREETING", "CLOUDTRAIN_ROOT"),
        *("CLOUDTRAIN_LOCAL_INSTANCE", "CLOUDTRAIN_LOCAL_CLOUD", "CLOUDTRAIN_LOCAL_CONTROL"),
    }


def test_the_keys_of_the_user_are_not_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "real")
    for kind in KINDS:
        require(kind)
        made = Rig(kind, tmp_path / kind)
        try:
            assert "real" not in made.run("env").out
        finally:
            made.close()


def test_the_current_directory_is_the_home(rig: Rig) -> None:
    assert rig.run("pwd").out.strip() == str(rig.root / "home")


def test_its_python_is_its_own_and_sees_the_packages_of_the_cloud(rig: Rig) -> None:
    answer = rig.run(
        "python -c 'import sys, cloudtrain, yaml; print(sys.prefix)' && python3 -m pip --version && pip -V"
    )
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"{rig.root}/home/venv\n")


def test_pip_installs_into_the_host_alone(rig: Rig) -> None:
    wheel = rig.root / "home" / "thing_of_a_host-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing_of_a_host.py", "")
        archive.writestr(
            "thing_of_a_host-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing-of-a-host\nVersion: 1\n"
        )
        archive.writestr(
            "thing_of_a_host-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("thing_of_a_host-1.dist-info/RECORD", "")
    answer = rig.run("pip install --no-index *.whl && python -c 'import thing_of_a_host as t; print(t.__file__)'")
    assert answer.code == 0, answer.err
    assert Path(answer.out.splitlines()[-1]).is_relative_to(rig.root / "home" / "venv")


def test_wrong_host_key_is_refused_by_the_client(rig: Rig) -> None:
    with pytest.raises(paramiko.BadHostKeyException):
        rig.connect(host_key=cloudinit.load_host_key(None))


def test_wrong_client_key_is_refused(rig: Rig) -> None:
    with pytest.raises(paramiko.AuthenticationException):
        rig.connect(client_key=cloudinit.load_host_key(None))


def test_no_login_without_a_key(rig: Rig) -> None:
    transport = paramiko.Transport(socket.create_connection(rig.host.endpoint))
    try:
        transport.start_client(timeout=5)
        with pytest.raises(paramiko.BadAuthenticationType) as refusal:
            transport.auth_password(rig.host.user, "guess")
        assert refusal.value.allowed_types == ["publickey"]
    finally:
        transport.close()


def test_the_console_shows_the_host_key(rig: Rig) -> None:
    block = rig.host.console.split("-----BEGIN SSH HOST KEY KEYS-----\n")[1].split("-----END")[0]
    assert block.split()[:2] == rig.host_key.public.split()


def test_a_command_goes_on_when_its_client_is_gone(rig: Rig) -> None:
    client = rig.connect()
    client.exec_command("echo $$ > pid; sleep 0.2; touch done; sleep 60")
    pid = rig.pid()
    client.close()
    assert eventually((rig.root / "home" / "done").exists)
    assert alive(pid)
    assert rig.run("true").code == 0


def test_clients_that_leave_at_any_moment_do_no_harm(rig: Rig) -> None:
    # An exception in a thread of the server fails the test as well: pytest turns it into an error.
    for wait_s in (0, 0.001, 0.003, 0.01, 0.03) * 2:
        client = rig.connect()
        stdin, _, _ = client.exec_command("echo hello; cat; head -c 100000 /dev/zero; exit 3")
        stdin.write(b"x" * 100_000)
        if wait_s:
            time.sleep(wait_s)
            stdin.channel.shutdown_write()
        client.close()
    assert rig.run("exit 4").code == 4


def test_a_detached_process_does_not_hold_the_command(rig: Rig) -> None:
    started = time.monotonic()
    answer = rig.run("setsid sh -c 'echo $$ > pid; exec sleep 60' >/dev/null 2>&1 </dev/null & echo started")
    assert answer.out == "started\n"
    assert time.monotonic() - started < 5
    assert alive(rig.pid())


def test_a_trainer_in_its_own_session_that_ignores_sigterm_dies(rig: Rig) -> None:
    (rig.root / "home" / "train.sh").write_text("trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done")
    rig.run("setsid sh train.sh >/dev/null 2>&1 &")
    pid = rig.pid()
    started = time.monotonic()
    rig.host.kill(grace_s=0.3)
    assert time.monotonic() - started >= 0.3
    assert not alive(pid)


def test_a_trainer_may_use_its_grace(rig: Rig, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    script = rig.root / "home" / "train.sh"
    script.write_text(f"trap 'sleep 0.1; touch \"{saved}\"; exit' TERM; touch ready; while :; do sleep 0.02; done")
    rig.run("setsid sh train.sh >/dev/null 2>&1 &")
    assert eventually((rig.root / "home" / "ready").exists)
    started = time.monotonic()
    rig.host.kill(grace_s=20)
    assert saved.exists()
    assert time.monotonic() - started < 10


def test_a_process_that_wiped_its_environment_dies_with_its_parent(rig: Rig) -> None:
    rig.run("(env -i sh -c 'echo $$ > pid; exec sleep 60'; true) >/dev/null 2>&1 &")
    pid = rig.pid()
    assert b"CLOUDTRAIN" not in Path(f"/proc/{pid}/environ").read_bytes()
    rig.host.kill(grace_s=0)
    assert not alive(pid)


def test_kill_ends_connections_and_leaves_the_console_alone(rig: Rig) -> None:
    client = rig.connect()
    channel = client.get_transport().open_session()  # type: ignore[union-attr]
    channel.exec_command("sleep 60")
    (rig.root / "home" / "locked" / "in").mkdir(parents=True)
    (rig.root / "home" / "locked" / "in" / "file").touch()
    outside = rig.root.with_name("outside")
    outside.mkdir(mode=0o750)
    (rig.root / "home" / "link").symlink_to(outside)
    for name in ("locked/in", "locked"):
        (rig.root / "home" / name).chmod(0o000)
    rig.host.kill(grace_s=0)
    assert eventually(lambda: not client.get_transport().is_active())  # type: ignore[union-attr]
    with pytest.raises(OSError, match=r"refused|reset"):
        socket.create_connection(rig.host.endpoint, timeout=2)
    assert [path.name for path in rig.root.iterdir()] == ["console.log"]
    assert outside.stat().st_mode & 0o777 == 0o750
    assert "BEGIN SSH HOST KEY KEYS" in rig.host.console
    rig.host.kill(grace_s=0)


def test_a_host_that_is_cut_off_hangs_and_comes_back(rig: Rig) -> None:
    client = rig.connect()
    rig.run("(while :; do date +%s%N > beat; sleep 0.02; done) >/dev/null 2>&1 &", client=client)
    rig.host.set_cut(True)
    with pytest.raises((paramiko.SSHException, TimeoutError, EOFError)):
        client.exec_command("true", timeout=0.5)
    with pytest.raises((paramiko.SSHException, OSError, EOFError)):
        _connect_quickly(rig)
    beat = (rig.root / "home" / "beat").read_text()
    assert eventually(lambda: (rig.root / "home" / "beat").read_text() != beat), "what runs there goes on"
    rig.host.set_cut(False)
    assert rig.run("echo back").out == "back\n"
    assert client.get_transport().is_active()  # type: ignore[union-attr]


def _connect_quickly(rig: Rig) -> None:
    with socket.create_connection(rig.host.endpoint, timeout=0.5) as connection:
        if not connection.recv(4):
            raise EOFError


def test_kill_works_on_a_host_that_is_cut_off(rig: Rig) -> None:
    rig.run("setsid sh -c 'exec sleep 60' >/dev/null 2>&1 &")
    rig.host.set_cut(True)
    rig.host.kill(grace_s=0)
    assert [path.name for path in rig.root.iterdir()] == ["console.log"]


def test_step_reads_the_progress_of_the_job(rig: Rig) -> None:
    assert rig.host.step() is None
    progress = rig.root / "home" / "cloudtrain" / "run" / "progress.json"
    progress.parent.mkdir(parents=True)
    for text, step in [('{"step": 12, "loss": null}', 12), ('{"ste', None), ("[]", None), ('{"step": "x"}', None)]:
        progress.write_text(text)
        assert rig.host.step() == step


def test_boot_runs_in_cloud_inits_order(tmp_path: Path) -> None:
    for kind in KINDS:
        require(kind)
        made = Rig(
            kind,
            tmp_path / kind,
            bootcmd=['mkdir -p "${CLOUDTRAIN_ROOT}/var/lib/x"; ls ${CLOUDTRAIN_ROOT}/etc', ["echo", "in the boot"]],
            write_files=[{"path": "/etc/thing.conf", "content": "a: 1\n", "permissions": "0640"}],
            runcmd=["cat ${CLOUDTRAIN_ROOT}/etc/thing.conf; pwd; echo $CLOUDTRAIN_LOCAL_INSTANCE"],
        )
        try:
            written = made.root / "rootfs" / "etc" / "thing.conf"
            assert written.stat().st_mode & 0o7777 == 0o640
            assert (made.root / "rootfs" / "var" / "lib" / "x").is_dir()
            console = made.host.console
            order = ["No such file", "in the boot", "BEGIN SSH HOST KEY KEYS", "a: 1", f"{made.root}/home"]
            assert sorted(order, key=console.index) == order
            assert made.spec.instance_id in console.rpartition("END SSH HOST KEY KEYS")[2]
        finally:
            made.close()


def test_a_boot_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    key = cloudinit.load_host_key(None)
    data = user_data(key, key, bootcmd=["setsid sleep 61 & ln -s / ${CLOUDTRAIN_ROOT}/out"])
    data += 'write_files:\n- {path: /out/cloudtrain-test-must-not-exist, content: ""}\n'
    for kind in KINDS:
        require(kind)
        with pytest.raises(UsageError, match="leaves the host's root"):
            start_host(kind, HostSpec(f"i-{kind}", "c", tmp_path / kind, data))
        assert [path.name for path in (tmp_path / kind).iterdir()] == ["console.log"]
        assert not Path("/cloudtrain-test-must-not-exist").exists()


def test_sshd_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_sshd, "_SBIN", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="sshd is not installed: install openssh-server"):
        start_host("sshd", HostSpec("i-1", "c", tmp_path / "host", ""))


def test_an_unknown_kind_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="host kind 'vm' is unknown"):
        start_host("vm", HostSpec("i-1", "c", tmp_path / "host", ""))


def test_port_scans_say_nothing_on_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = Rig("embedded", tmp_path / "host")
    try:
        for greeting in (b"", b"GET / HTTP/1.0\r\n\r\n", b"SSH-2.0-x\r\n"):
            with socket.create_connection(made.host.endpoint) as connection:
                connection.sendall(greeting)
        assert made.run("true").code == 0
        time.sleep(0.1)
    finally:
        made.close()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_an_exit_code_never_overtakes_the_answer_to_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = paramiko.Transport._send_user_message  # type: ignore[attr-defined]

    def late(transport: paramiko.Transport, message: paramiko.Message) -> None:
        if threading.current_thread() is transport and transport.server_mode:
            time.sleep(0.1)
        sends(transport, message)

    made = Rig("embedded", tmp_path / "host")
    try:
        client = made.connect()
        monkeypatch.setattr(paramiko.Transport, "_send_user_message", late)
        assert [made.run(f"exit {n}", client=client).code for n in range(3)] == [0, 1, 2]
    finally:
        made.close()


def test_power_off_timers_are_honoured_when_due(rig: Rig) -> None:
    at = int(time.time()) + 3
    stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    assert rig.run(f"systemd-run --unit=dead-man --on-calendar='{stamp}' systemctl poweroff").code == 0
    assert json.loads((rig.root / "control" / "timers" / "dead-man.json").read_text())["at"] == at
    assert not rig.host.poweroff_requested() or time.time() >= at
    assert eventually(rig.host.poweroff_requested)
    assert time.time() >= at
