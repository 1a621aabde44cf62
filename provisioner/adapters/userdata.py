"""What a machine is told at its first boot: cloud-config with the dead-man switch, the keys, and nothing else.

The switch (docs/dead-man-switch.md) is armed before anything else (``bootcmd`` runs at every boot, ahead of networked
services): a systemd timer with an absolute time, and a watch beside it that needs neither the timer nor the right time,
and that also ends a machine whose work stands still. Powering off ends the machine, since it was launched with
InstanceInitiatedShutdownBehavior=terminate. It needs no permission and no key of ours. The only secret in here is a
throw-away host key: user data can be read by every process on the machine.

Sources: cloud-init's modules cc_bootcmd and cc_ssh (26.1, read 2026-11); systemd.timer(5), systemd-run(1).
"""

from __future__ import annotations

import textwrap

import yaml

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.trainer.contract import SWITCH_DIR, WORK_FILE

MAX_BYTES = 16 * 1024  # raw, before base64: EC2 user guide, "Run commands when you launch an EC2 instance"

CHECK_S = 60  # between two rounds of the watch
STILL_CHECKS = 25  # rounds without a change in the work: with the power-off itself, under 30 minutes
FORCE_S = 120  # an orderly power-off gets so long: systemd gives the agent 90 s of it to save

_FOLDER = "${CLOUDTRAIN_ROOT:-}" + SWITCH_DIR
_WORK = "${CLOUDTRAIN_ROOT:-}" + WORK_FILE

# --no-block and DefaultDependencies=no: the timer must count from now on. By default it would wait for sysinit.target,
# which on Ubuntu waits for cloud-init, which waits for this command; and the service must outlive the shutdown that it
# starts. IgnoreOnIsolate: a change of systemd's target must not stop it. The new timer is armed before the old one is
# stopped, so that at no moment there is none. A time that has passed would never fire, so it is acted upon here. The
# deadline is on the disk before the timer moves: on a full disk both stay as they were, and the caller is told.
_ARM = r"""#!/bin/sh
# This machine's dead-man switch: "arm show" prints its deadline, "arm UNIX_SECONDS" moves it, "arm" arms it again.
set -u
dir="@FOLDER@"
run="@RUN@"
at=@BOOT@
hard=@HARD@
new=
case "${1:-}" in
  '' | show) ;;
  *[!0-9]*) echo "cloudtrain: $1 is not a time in seconds" >&2; exit 2 ;;
  *) new=$1 ;;
esac
drop() { rm -f "$dir/deadline.new"; echo "cloudtrain: $1, the deadline stays as it was" >&2; exit 1; }
if [ -n "$new" ]; then
  at=$new
  { printf '%s\n' "$new" >"$dir/deadline.new" && sync "$dir/deadline.new"; } ||
    drop "$dir can't be written, is the disk full?"
elif [ -r "$dir/deadline" ]; then
  kept=$(cat "$dir/deadline")
  case "$kept" in
    '' | *[!0-9]*) echo "cloudtrain: $dir/deadline is not a time in seconds: ignored" >&2 ;;
    *) at=$kept ;;
  esac
fi
if [ "$hard" -gt 0 ] && [ "$at" -gt "$hard" ]; then at=$hard; fi
if [ "${1:-}" = show ]; then echo "$at"; exit 0; fi
now=$(date +%s)
if [ "$at" -le "$now" ]; then exec "$dir/poweroff"; fi
when=$(date -u -d "@$at" '+%Y-%m-%d %H:%M:%S UTC' 2>/dev/null || date -u -r "$at" '+%Y-%m-%d %H:%M:%S UTC') ||
  drop "$at is no date"
unit="cloudtrain-deadline-$now-$$"
systemd-run --no-block --unit="$unit" --on-calendar="$when" --timer-property=AccuracySec=1s \
  --timer-property=DefaultDependencies=no --timer-property=IgnoreOnIsolate=yes \
  --property=DefaultDependencies=no "$dir/poweroff" || drop "systemd takes no timer"
if [ -n "$new" ]; then
  mv "$dir/deadline.new" "$dir/deadline" || { systemctl stop "$unit.timer"; drop "$dir can't be written"; }
fi
if [ -s "$run/armed" ]; then systemctl stop "$(cat "$run/armed").timer" 2>/dev/null; fi
echo "$unit" >"$run/armed"
echo "cloudtrain: this machine ends at $when"
"""

# It asks the clock for the deadline alone, so that a clock that was wrong at boot, or jumps, ends no work: what stands
# still is counted in rounds. The work file is the agent's: its first line changes as the attempt gets on, its second
# names the job's progress file, which counts too, for a job may train while its agent is stuck. No agent, no change:
# that is a machine that never started.
_WATCH = r"""#!/bin/sh
# The other half of the dead-man switch: ends the machine at its deadline, whatever became of the timer, and once its
# work has stood still for @STILL@ rounds of @CHECK@ s.
set -u
dir="@FOLDER@"
work="@WORK@"
last=
still=0
while sleep @CHECK@; do
  if at=$("$dir/arm" show) && [ "$(date +%s)" -ge "$at" ]; then exec "$dir/poweroff"; fi
  progress=$(sed -n 2p "$work" 2>/dev/null)
  seen=$(cat "$work" "${progress:-/dev/null}" 2>/dev/null | cksum)
  if [ "$seen" = "$last" ]; then still=$((still + 1)); else still=0; fi
  last=$seen
  if [ "$still" -ge @STILL@ ]; then exec "$dir/poweroff" "its work has stood still for $still x @CHECK@ s"; fi
done
"""

# On a host of the embedded cloud only its own switch may be touched: no forced power-off there, whatever went before.
_POWEROFF = r"""#!/bin/sh
# Ends this machine: an orderly power-off, and one by force if that hangs.
echo "cloudtrain: ${1:-the deadline has passed}, powering off"
systemctl --no-block poweroff
if [ -n "${CLOUDTRAIN_ROOT:-}${CLOUDTRAIN_LOCAL_INSTANCE:-}" ]; then exit 0; fi
sleep @FORCE@
while :; do
  systemctl --force --force poweroff &
  sleep 10
  echo o >/proc/sysrq-trigger
  sleep 60
done
"""

# A machine whose switch can't be armed must not run. A local host has no systemd to keep the watch.
_BOOT = """dir="@FOLDER@"
run="@RUN@"
mkdir -p "$dir" "$run"
cat >"$dir/arm" <<'CLOUDTRAIN_END'
@ARM@CLOUDTRAIN_END
cat >"$dir/watch" <<'CLOUDTRAIN_END'
@WATCH@CLOUDTRAIN_END
cat >"$dir/poweroff" <<'CLOUDTRAIN_END'
@POWEROFF@CLOUDTRAIN_END
chmod 755 "$dir/arm" "$dir/watch" "$dir/poweroff"
watch() {
  if [ -n "${CLOUDTRAIN_LOCAL_INSTANCE:-}" ]; then "$dir/watch" & return; fi
  systemd-run --no-block --unit="cloudtrain-watch-$$" --property=DefaultDependencies=no \\
    --property=IgnoreOnIsolate=yes --property=Restart=always --property=RestartSec=1 \\
    --property=StartLimitIntervalSec=0 --property=OOMScoreAdjust=-1000 "$dir/watch"
}
{ "$dir/arm" && watch; } || "$dir/poweroff" "its switch could not be armed" || systemctl poweroff
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

    The machine powers off at ``boot_deadline_at`` (Unix seconds) unless ``extend_command`` moved that, at
    ``hard_deadline_at`` whatever was said since (None sets no such limit), and once its work stands still. Raises
    UsageError where the text is too long.
    """
    boot = _boot_script(boot_deadline_at, hard_deadline_at)
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

    It exits with 0 once the new timer is armed and the new time would outlive a reboot; else with another code and a
    line on stderr, and the machine keeps the deadline that it had. A time past the hard deadline means the hard
    deadline; one that has passed ends the machine.
    """
    run = f'"$arm" {int(at)}'
    return textwrap.dedent(f"""\
        arm="{_FOLDER}/arm"
        if [ -n "${{CLOUDTRAIN_ROOT:-}}" ] || [ "$(id -u)" -eq 0 ]; then {run}; else sudo -n {run}; fi""")


def _boot_script(boot_deadline_at: float, hard_deadline_at: float | None) -> str:
    values = {
        "@ARM@": _ARM,
        "@WATCH@": _WATCH,
        "@POWEROFF@": _POWEROFF,
        "@FOLDER@": _FOLDER,
        "@WORK@": _WORK,
        "@RUN@": _WORK.rpartition("/")[0],
        "@BOOT@": str(int(boot_deadline_at)),
        "@HARD@": str(int(hard_deadline_at) if hard_deadline_at is not None else 0),
        "@CHECK@": str(CHECK_S),
        "@STILL@": str(STILL_CHECKS),
        "@FORCE@": str(FORCE_S),
    }
    text = _BOOT
    for name, value in values.items():
        text = text.replace(name, value)
    return text


class _Text(str):
    """A string that is written as a literal block, so that a person can read it in the console."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    _Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)
