"""The change from the host key of the user data, which others can read, to one that the machine made itself.

Three steps over the first pinned session: the machine makes its key and names it; the key is recorded as accepted too,
here and in the bucket; only then does the machine's sshd change over. Once the new key has been seen to serve, it alone
is accepted. Whoever takes up after a death between any two of these steps accepts the key that serves, and does them
again. No key is ever learnt over a connection that was not pinned.
"""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.provisioner.adapters.keys import change_command, offer_command, offered
from cloudtrain.provisioner.controller.journal import see_ours
from cloudtrain.provisioner.controller.reach import Reach
from cloudtrain.provisioner.controller.takeover import keep_attempt
from cloudtrain.provisioner.errors import CloudtrainError, RemoteError
from cloudtrain.provisioner.model import Attempt, JobRecord, Machine
from cloudtrain.provisioner.ports import RunResult

TIMEOUT_S = 20.0  # for each command


class KeyRefused(CloudtrainError):
    """The machine can't change its host key: it says so itself, and would again."""


def change_host_key(reach: Reach, record: JobRecord, attempt: Attempt, machine: Machine) -> None:
    """See that the attempt's machine serves with a host key of its own, which alone is accepted then. Idempotent.

    Raises RemoteError (unknown how far it came: repeat it), KeyRefused, DrivenElsewhere, CloudUnreachable.
    """
    files = reach.files
    if files.own_key(attempt) is not None:
        return
    first = reach.target(attempt, machine)
    answer = reach.remote.run(first, offer_command(), timeout_s=TIMEOUT_S)
    _require(answer)
    try:
        public = offered(answer.stdout.decode(errors="replace"))
    except ValueError as error:
        raise KeyRefused(f"the machine names no host key of its own: {error}") from error
    accepted = files.accepted(attempt)
    if public not in accepted:
        files.accept(attempt, (*accepted, public))
    keep_attempt(record, attempt.generation, reach.objects, reach.job_dir)
    see_ours(record, reach.objects)  # who took the job over before that was written knows the first key alone
    _require(reach.remote.run(first, change_command(public), timeout_s=TIMEOUT_S))
    reach.remote.forget(first)
    served = reach.remote.run(replace(first, host_keys=(public,)), "exit 0", timeout_s=TIMEOUT_S)
    if served.exit_code != 0:
        raise RemoteError(f"the machine's own host key serves, but no command: exit {served.exit_code}")
    files.accept(attempt, (public,))
    keep_attempt(record, attempt.generation, reach.objects, reach.job_dir)


def _require(answer: RunResult) -> None:
    if answer.exit_code != 0:
        said = answer.stderr.decode(errors="replace").strip().splitlines()
        raise KeyRefused(f"the machine can't change its SSH host key: {said[-1] if said else 'it does not say why'}")
