"""What the embedded cloud's vCPU quotas allow, and what a fault makes of them."""

from __future__ import annotations

import pytest

from cloudtrain.provisioner.account.quotas import QUOTAS
from cloudtrain.provisioner.localcloud.quotas import GENEROUS, aws_default, value


@pytest.mark.parametrize(
    ("fault", "zero"),
    [
        ("quota-spot-zero", {"L-3819A6DF", "L-7212CCBC", "L-C4BD4855", "L-85EED4F7", "L-6B0D517C", "L-B5D1601B"}),
        ("quota-on-demand-zero", {"L-DB2E81BA", "L-417A185B", "L-6E869C2A", "L-2C3B7624", "L-1945791B"}),
        ("quota-p5-spot-zero", {"L-C4BD4855"}),
        ("no-role", set()),
    ],
)
def test_a_fault_takes_its_quotas_and_no_other(fault: str, zero: set[str]) -> None:
    found = {quota.code: value(quota, [fault]) for quota in QUOTAS}
    assert {code for code, amount in found.items() if amount == 0} == zero
    assert set(found.values()) <= {0.0, GENEROUS}


def test_a_new_account_of_aws_may_run_no_gpu() -> None:
    allowed = {quota.code for quota in QUOTAS if aws_default(quota) > 0}
    assert allowed == {"L-1216C47A", "L-34B43A08"}
