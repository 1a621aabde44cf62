"""What a machine is told at its first boot: cloud-config with the dead-man switch, the keys, and nothing else.

The switch is armed before anything else (``bootcmd`` runs at every boot, ahead of networked services): a systemd timer
with an absolute time that powers the machine off, which ends it, since it was launched with
InstanceInitiatedShutdownBehavior=terminate. It needs no permission and no key of ours. The only secret in here is a
throw-away host key: user data can be read by every process on the machine.

Sources: cloud-init's modules cc_bootcmd and cc_ssh (26.1, read 2026-11); systemd.timer(5), systemd-run(1).
"""

from __future__ import annotations

import textwrap

import yaml

from cloudtrain.provisioner.errors import UsageError

MAX_BYTES = 16 * 1024  # raw, before base64: EC2 user guide, "Run commands when you launch an EC2 instance"

_FOLDER = "${CLOUDTRAIN_ROOT:-}/var/lib/cloudtrain"

# --no-block and DefaultDependencies=no: the timer must count from now on. By default it would wait for sysinit.target,
# which on Ubuntu waits for cloud-init, which waits for this command; and the service must outlive the shutdown that it
# starts. The new timer is armed before the old one is stopped, so that at no moment there is none. A time that has
# passed would never fire, so it is acted upon here.
_ARM = r"""#!/bin/sh
# Arms this machine's dead-man switch. "arm UNIX_SECONDS" moves the deadline, "arm" arms it again.
set -u
dir="@FOLDER@"
at=@BOOT@
hard=@HARD@
if [ $# -gt 0 ]; then
  printf '%s\n' "$1" >"$dir/deadline.new" && mv "$dir/deadline.new" "$dir/deadline" || exit 1
fi
if [ -r "$dir/deadline" ]; then
  kept=$(cat "$dir/deadline")
  case "$kept" in
    '' | *[!0-9]*) echo "cloudtrain: $dir/deadline is not a time in seconds: ignored" >&2 ;;
    *) at=$kept ;;
  esac
fi
if [ "$hard" -gt 0 ] && [ "$at" -gt "$hard" ]; then at=$hard; fi
now=$(date +%s)
if [ "$at" -le "$now" ]; then exec "$dir/poweroff"; fi
when=$(date -u -d "@$at" '+%Y-%m-%d %H:%M:%S UTC' 2>/dev/null || date -u -r "$at" '+%Y-%m-%d %H:%M:%S UTC') || exit 1
unit="cloudtrain-deadline-$now-$$"
systemd-run --no-block --unit="$unit" --on-calendar="$when" --timer-property=AccuracySec=1s \
  --timer-property=DefaultDependencies=no --property=DefaultDependencies=no "$dir/poweroff" || exit 1
if [ -s "$dir/armed" ]; then systemctl stop "$(cat "$dir/armed").timer" 2>/dev/null; fi
echo "$unit" >"$dir/armed"
echo "cloudtrain: this machine ends at $when"
"""

# On a host of the embedded cloud only its own switch may be touched: no forced power-off there, whatever went before.
_POWEROFF = r"""#!/bin/sh
# Ends this machine: an orderly power-off, and one by force if that hangs.
echo "cloudtrain: the deadline has passed, powering off"
systemctl --no-block poweroff
if [ -n "${CLOUDTRAIN_ROOT:-}${CLOUDTRAIN_LOCAL_INSTANCE:-}" ]; then exit 0; fi
sleep 60
systemctl --force --force poweroff &
sleep 10
echo o >/proc/sysrq-trigger
"""

# A machine whose switch can't be armed must not run.
_BOOT = """dir="{folder}"
mkdir -p "$dir"
cat >"$dir/arm" <<'CLOUDTRAIN_END'
{arm}CLOUDTRAIN_END
cat >"$dir/poweroff" <<'CLOUDTRAIN_END'
{poweroff}CLOUDTRAIN_END
chmod 755 "$dir/arm" "$dir/poweroff"
"$dir/arm" || "$dir/poweroff" || systemctl poweroff
"""

# They restart services and hold locks in the middle of a job. Never a reason not to boot.
_QUIET = "systemctl mask apt-daily.timer apt-daily-upgrade.timer unattended-upgrades.service || true\n"


def cloud_config(
    *,
    client_public_key: str,
    host_private_key: str,
    host_public_key: str,
    boot_deadline_at: float,
    hard_deadline_at: float | None = None,
) -> str:
    """The user data of a machine: cloud-config text, under 16 KB. The same arguments give the same text.

    The machine powers off at ``boot_deadline_at`` (Unix seconds) unless ``extend_command`` moved that, and at
    ``hard_deadline_at`` whatever was said since; None sets no such limit. Raises UsageError where the text is too long.
    """
    boot = _BOOT.format(folder=_FOLDER, arm=_arm_script(boot_deadline_at, hard_deadline_at), poweroff=_POWEROFF)
    config = {
        "bootcmd": [_Text(boot), _Text(_QUIET)],
        "ssh_deletekeys": True,
        "ssh_keys": {
            "ed25519_private": _Text(host_private_key.strip() + "\n"),
            "ed25519_public": host_public_key.strip(),
        },
        "ssh_authorized_keys": [client_public_key.strip()],
    }
    text = "#cloud-config\n" + yaml.dump(config, Dumper=_Dumper, sort_keys=False, width=100_000)
    if len(text.encode()) > MAX_BYTES:
        raise UsageError(f"user data has {len(text.encode())} bytes, EC2 takes {MAX_BYTES}: use shorter keys")
    return text


def extend_command(at: float) -> str:
    """A shell command for the login user, over SSH, that moves the machine's deadline to ``at`` (Unix seconds).

    It exits with 0 once the new timer is armed. A time past the hard deadline means the hard deadline; one that has
    passed ends the machine.
    """
    run = f'"$arm" {int(at)}'
    return textwrap.dedent(f"""\
        arm="{_FOLDER}/arm"
        if [ -n "${{CLOUDTRAIN_ROOT:-}}" ] || [ "$(id -u)" -eq 0 ]; then {run}; else sudo -n {run}; fi""")


def _arm_script(boot_deadline_at: float, hard_deadline_at: float | None) -> str:
    hard = int(hard_deadline_at) if hard_deadline_at is not None else 0
    return _ARM.replace("@FOLDER@", _FOLDER).replace("@BOOT@", str(int(boot_deadline_at))).replace("@HARD@", str(hard))


class _Text(str):
    """A string that is written as a literal block, so that a person can read it in the console."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    _Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)
