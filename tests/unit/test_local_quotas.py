"""Which vCPU quota a machine counts against in the embedded cloud, and what a fault makes of it."""

from __future__ import annotations

import pytest

from cloudtrain.provisioner.localcloud.quotas import GENEROUS, ON_DEMAND, QUOTAS, SPOT, quota_of, value


@pytest.mark.parametrize(
    ("instance_type", "market", "code"),
    [
        ("g4dn.xlarge", SPOT, "L-3819A6DF"),
        ("g4dn.xlarge", ON_DEMAND, "L-DB2E81BA"),
        ("gr6.4xlarge", SPOT, "L-3819A6DF"),
        ("p4d.24xlarge", SPOT, "L-7212CCBC"),
        ("p5en.48xlarge", SPOT, "L-C4BD4855"),
        ("p5.4xlarge", ON_DEMAND, "L-417A185B"),
        ("p6-b200.48xlarge", SPOT, "L-7212CCBC"),
        ("trn1.2xlarge", SPOT, "L-6B0D517C"),
        ("inf2.xlarge", ON_DEMAND, "L-1945791B"),
        ("dl1.24xlarge", SPOT, "L-85EED4F7"),
        ("m5.large", SPOT, "L-34B43A08"),
        ("inf-nothing", ON_DEMAND, "L-1945791B"),
    ],
)
def test_each_family_has_its_quota(instance_type: str, market: str, code: str) -> None:
    quota = quota_of(instance_type, market)
    assert quota is not None
    assert quota.code == code


def test_f_has_no_quota_for_spot() -> None:
    assert quota_of("f2.xlarge", SPOT) is None


def test_codes_and_names_are_all_different() -> None:
    assert len({quota.code for quota in QUOTAS.values()}) == len({q.name for q in QUOTAS.values()}) == len(QUOTAS)


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
    found = {quota.code: value(quota, [fault]) for quota in QUOTAS.values()}
    assert {code for code, amount in found.items() if amount == 0} == zero
    assert set(found.values()) <= {0.0, GENEROUS}
