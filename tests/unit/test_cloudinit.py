"""The stand-in for cloud-init: what it reads, and all that it refuses."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path

import pytest
import yaml

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.localcloud import cloudinit

KEY = cloudinit.load_host_key(None)
OTHER = cloudinit.load_host_key(None)


def _text(**config: object) -> str:
    return "#cloud-config\n" + yaml.safe_dump(config)


def _ssh_keys(private: object = KEY.private, public: object = KEY.public, **more: object) -> dict[str, object]:
    return {"ed25519_private": private, "ed25519_public": public, **more}


def test_everything_that_is_served() -> None:
    config = cloudinit.parse(
        _text(
            ssh_authorized_keys=["ssh-ed25519 AAAA me@here", "ssh-rsa BBBB"],
            ssh_keys=_ssh_keys(public=f"{KEY.public} root@host"),
            ssh_deletekeys=True,
            bootcmd=["echo a; echo b", ["printf", "%s", "it's", 7]],
            runcmd=[["ls", "-l"]],
            write_files=[{"path": "/a/b", "content": "text", "owner": "root:root", "append": True}],
        )
    )
    assert config.authorized_keys == ("ssh-ed25519 AAAA me@here", "ssh-rsa BBBB")
    assert config.host_key == KEY.private
    assert config.bootcmd == "echo a; echo b\nprintf %s 'it'\"'\"'s' 7\n"
    assert config.runcmd == "ls -l\n"
    assert config.write_files == (cloudinit.WriteFile("/a/b", b"text", 0o644, True),)


@pytest.mark.parametrize("text", ["", "#cloud-config", "#cloud-config\n", "#cloud-config\n# nothing\n"])
def test_nothing_is_fine(text: str) -> None:
    assert cloudinit.parse(text) == cloudinit.CloudConfig()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("bootcmd: []\n", "does not begin with the line #cloud-config"),
        ("#!/bin/sh\necho\n", "does not begin with the line #cloud-config"),
        ("#cloud-config bootcmd: []\n", "does not begin with the line #cloud-config"),
        ("#cloud-config\nbootcmd: [\n", "is no YAML"),
        ("#cloud-config\n- a\n", "must be a mapping"),
        ("#cloud-config\n" + "#" * (16 * 1024 - 13), "16385 bytes: EC2 takes 16384"),
        ("#cloud-config\n# " + "é" * 8192, "EC2 takes 16384"),
        (_text(boot_cmd=["x"]), "user data: boot_cmd not supported"),
        (_text(ssh_authorised_keys=[]), "ssh_authorised_keys not supported"),
        (_text(packages=["git"], users=[]), "packages, users not supported"),
        (_text(bootcmd="echo"), "bootcmd must be a list"),
        (_text(bootcmd=[{"a": 1}]), "each bootcmd must be a text or a list of words"),
        (_text(runcmd=[[]]), "each runcmd must be a text or a list of words"),
        (_text(ssh_deletekeys="yes please"), "ssh_deletekeys must be true or false"),
        (_text(ssh_authorized_keys="ssh-ed25519 AAAA"), "ssh_authorized_keys must be a list"),
        (_text(ssh_authorized_keys=["AAAA"]), "must be one line"),
        (_text(ssh_authorized_keys=["ssh-rsa A\nssh-rsa B"]), "must be one line"),
        (_text(ssh_keys=[]), "ssh_keys must be a mapping"),
        (_text(ssh_keys=_ssh_keys(rsa_private="x")), "ssh_keys: rsa_private not supported"),
        (_text(ssh_keys={"ed25519_private": KEY.private}), "needs the texts ed25519_private and ed25519_public"),
        (_text(ssh_keys=_ssh_keys(private=KEY.private.rstrip())), "must end with a newline"),
        (_text(ssh_keys=_ssh_keys(private="junk\n")), "is no OpenSSH private key"),
        (_text(ssh_keys=_ssh_keys(public=OTHER.public)), "is not the public half"),
        (_text(write_files=[{"path": "etc/x"}]), "must be an absolute file path"),
        (_text(write_files=[{"path": "/etc/../../x"}]), "must be an absolute file path"),
        (_text(write_files=[{"path": "/etc/x/"}]), "must be an absolute file path"),
        (_text(write_files=[{"content": "x"}]), "path None must be"),
        (_text(write_files=[{"path": "/x", "mode": "0600"}]), "write_files: mode not supported"),
        (_text(write_files=[{"path": "/x", "content": 1}]), "content of /x must be text"),
        (_text(write_files=[{"path": "/x", "permissions": "rw"}]), "must be octal"),
        (_text(write_files=[{"path": "/x", "permissions": "77777"}]), "must be octal"),
        (_text(write_files=[{"path": "/x", "encoding": "gzip"}]), "encoding 'gzip' of /x not supported"),
        (_text(write_files=[{"path": "/x", "encoding": "b64", "content": "?"}]), "is no base64"),
        (_text(write_files=[{"path": "/x", "append": "no"}]), "append of /x must be true or false"),
    ],
)
def test_refused_with_one_line(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refusal:
        cloudinit.parse(text)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_size_that_ec2_takes_is_taken() -> None:
    cloudinit.parse("#cloud-config\n" + "#" * (16 * 1024 - 14))


def test_an_unquoted_mode_is_octal_as_yaml_reads_it() -> None:
    text = "#cloud-config\nwrite_files:\n- {path: /a, permissions: 0600}\n- {path: /b, permissions: '0600'}\n"
    assert [file.mode for file in cloudinit.parse(text).write_files] == [0o600, 0o600]


def test_no_host_key_means_a_new_one() -> None:
    assert KEY.public != OTHER.public
    assert cloudinit.load_host_key(KEY.private) == KEY


def test_files_land_below_the_root(tmp_path: Path) -> None:
    config = cloudinit.parse(
        _text(
            write_files=[
                {"path": "/usr/local/bin/x", "content": "#!/bin/sh\n", "permissions": "0755"},
                {"path": "/data", "content": base64.b64encode(b"\0\xff").decode(), "encoding": "b64"},
                {"path": "/log", "content": "a\n"},
                {"path": "/log", "content": "b\n", "append": True},
            ]
        )
    )
    cloudinit.write_files(config, tmp_path)
    assert (tmp_path / "usr/local/bin/x").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "data").read_bytes() == b"\0\xff"
    assert (tmp_path / "log").read_text() == "a\nb\n"


@pytest.mark.parametrize("path", ["/out/x", "/out"])
def test_a_link_leads_no_file_out_of_the_root(path: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to(outside / "file" if path == "/out" else outside)
    with pytest.raises(UsageError, match="leaves the host's root"):
        cloudinit.write_files(cloudinit.parse(_text(write_files=[{"path": path, "content": "x"}])), root)
    assert list(outside.iterdir()) == []


def _run(script: str, tmp_path: Path, limit_s: float = 30.0) -> str:
    console = tmp_path / "console.log"
    env = {"PATH": os.environ["PATH"], "GREETING": "hi"}
    cloudinit.run_script("bootcmd", script, env=env, home=tmp_path, console=console, limit_s=limit_s)
    return console.read_text()


def test_a_script_runs_in_one_shell_in_the_home(tmp_path: Path) -> None:
    assert _run("x=$GREETING\necho $x >&2; pwd\n", tmp_path) == f"hi\n{tmp_path}\n"


def test_a_failing_script_is_told_and_the_boot_goes_on(tmp_path: Path) -> None:
    assert _run("echo before\nexit 3\n", tmp_path) == "before\ncloud-init: bootcmd failed: exit 3\n"


def test_a_script_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    started = time.monotonic()
    assert "cloud-init: bootcmd was ended after 0.2 s" in _run("sleep 60 | sleep 60", tmp_path, limit_s=0.2)
    assert time.monotonic() - started < 10


def test_what_a_script_leaves_behind_does_not_hold_the_boot(tmp_path: Path) -> None:
    started = time.monotonic()
    _run("sleep 5 &\n", tmp_path)
    assert time.monotonic() - started < 4


def test_the_key_report_is_what_the_console_of_a_machine_shows() -> None:
    report = cloudinit.key_report(KEY, "i-1")
    assert f"-----BEGIN SSH HOST KEY KEYS-----\n{KEY.public} root@i-1\n-----END SSH HOST KEY KEYS-----\n" in report
    assert f"256 {KEY.fingerprint} root@i-1 (ED25519)" in report


def test_a_fingerprint_is_ssh_keygens() -> None:
    # ssh-keygen -lf on this key says SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU (GitHub's published one).
    key = cloudinit.HostKey("", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl")
    assert key.fingerprint == "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"
