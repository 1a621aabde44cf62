"""What ``launch`` says of the account before it asks to go on: the checks of ``doctor``, for the plan's own pools."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtrain.provisioner.account.facts import Finding, Level, Wants
from cloudtrain.provisioner.cli.words import printable, say
from cloudtrain.provisioner.errors import AccessError, CloudUnreachable
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.launch.launching import Prepared

if TYPE_CHECKING:
    from cloudtrain.provisioner.launch.access import Access
    from cloudtrain.provisioner.launch.preflight import Verdict

SILENT_S = 5.0
PATIENCE_S = 120.0
SHOWN = 3
"""So many findings of one check are shown; the others are counted."""


class Opening:
    """Opens and checks the account in a thread of its own: it takes some seconds that taking the workdir can fill."""

    def __init__(self, cloud: str, home: Home, prepared: Prepared) -> None:
        self._prepared = prepared
        self._opened: Future[tuple[Verdict, Access | None]] = Future()
        spec, plan = prepared.spec, prepared.plan
        wants = Wants(plan.offerings, spec.disk_size_gib, spec.aws, spec.max_run_s, mounts=spec.file_mounts)
        threading.Thread(target=self._open, args=(cloud, home, wants), name="opening", daemon=True).start()

    def _open(self, cloud: str, home: Home, wants: Wants) -> None:
        gc.disable()  # boto3 brings tables that stay: looking through them again and again is a sixth of the time
        try:
            from cloudtrain.provisioner.cli import account  # noqa: PLC0415 - boto3, in this thread

            self._opened.set_result(account.open_checked(cloud, home, wants))
        except BaseException as error:  # noqa: BLE001 - whoever takes the result gets it
            self._opened.set_exception(error)
        finally:
            gc.enable()

    def _answered(self) -> tuple[Verdict, Access | None]:
        """What came of it. Says after a while what is waited for. Raises CloudUnreachable where no answer comes."""
        with contextlib.suppress(TimeoutError):
            return self._opened.result(SILENT_S)
        where = "the local cloud" if self._prepared.cloud == "local" else "AWS"
        say(f"waiting for {where} to answer about the account and its bucket, {PATIENCE_S:.0f} s at most …")
        try:
            return self._opened.result(PATIENCE_S - SILENT_S)
        except TimeoutError:
            if self._opened.done():
                raise
            raise CloudUnreachable(f"{where} did not answer in {PATIENCE_S:.0f} s: nothing was started") from None

    def result(self) -> tuple[Prepared, Access]:
        """Wait for it, say what is not well, and return the plan without the pools that are out, with the way in.

        Raises AccessError where nothing may start, after every reason was said.
        """
        verdict, access = self._answered()
        refusals = verdict.refusals
        if access is None:
            _say(refusals)
            checks = "check above fails" if len(refusals) == 1 else "checks above fail"
            local = " --cloud local" if self._prepared.cloud == "local" else ""
            again = f"`cloudtrain doctor JOB.yaml{local}`"
            raise AccessError(f"nothing was started: the {checks}; {again} tells when all is mended")
        _say(verdict.findings)
        plan = replace(self._prepared.plan, offerings=verdict.offerings)
        return replace(self._prepared, plan=plan), access


def _say(findings: tuple[Finding, ...]) -> None:
    """One line each; of a check that says the same of many regions, the first few."""
    shown: Counter[str] = Counter()
    for finding in findings:
        shown[finding.check] += 1
        if shown[finding.check] <= SHOWN:
            say(line(finding))
    for check, count in shown.items():
        if count > SHOWN:
            say(f"… and {count - SHOWN} more of {check}: `cloudtrain doctor --region REGION` shows them")


def line(finding: Finding) -> str:
    """A finding in one line: how bad, where, what, and what to do."""
    head = "without" if finding.pools else "fails" if finding.level is Level.FAIL else "note"
    where = "" if finding.where == "account" else f"{finding.where}: "
    return printable(f"{head}: {where}{finding.what}; fix: {finding.fix}")
