"""Which quota counts which machine."""

from __future__ import annotations

import pytest

from cloudtrain.pricing import catalog
from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.account.quotas import QUOTAS, Quota, console_page, increase_command, quota_of

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


@pytest.mark.parametrize(
    ("kind", "market", "code"),
    [
        ("g4dn.xlarge", SPOT, "L-3819A6DF"),
        ("g6e.48xlarge", ON_DEMAND, "L-DB2E81BA"),
        ("gr6.4xlarge", SPOT, "L-3819A6DF"),
        ("g5g.xlarge", ON_DEMAND, "L-DB2E81BA"),
        ("p4d.24xlarge", SPOT, "L-7212CCBC"),
        ("p3dn.24xlarge", SPOT, "L-7212CCBC"),
        ("p5.48xlarge", SPOT, "L-C4BD4855"),
        ("p5en.48xlarge", SPOT, "L-C4BD4855"),
        ("p5.48xlarge", ON_DEMAND, "L-417A185B"),
        ("p6-b200.48xlarge", ON_DEMAND, "L-417A185B"),
        ("trn1.32xlarge", SPOT, "L-6B0D517C"),
        ("inf2.xlarge", ON_DEMAND, "L-1945791B"),
        ("dl1.24xlarge", ON_DEMAND, "L-6E869C2A"),
        ("m7i.large", SPOT, "L-34B43A08"),
        ("t3.micro", ON_DEMAND, "L-1216C47A"),
    ],
)
def test_the_quota_of_a_type(kind: str, market: CapacityType, code: str) -> None:
    quota = quota_of(kind, market)
    assert quota is not None
    assert quota.code == code


def test_p6_on_spot_and_unknown_letters_have_no_known_quota() -> None:
    assert quota_of("p6-b200.48xlarge", SPOT) is None
    assert quota_of("xyz", ON_DEMAND) is None
    assert quota_of("u-6tb1.metal", ON_DEMAND) is None


def test_every_type_of_the_catalogue_has_a_quota_but_p6_on_spot() -> None:
    without = {
        i.name for i in catalog.load().instances for market in (SPOT, ON_DEMAND) if quota_of(i.name, market) is None
    }
    assert {name.partition(".")[0] for name in without} == {"p6-b200", "p6-b300"}


def test_codes_and_names_are_all_different() -> None:
    assert len({quota.code for quota in QUOTAS}) == len({quota.name for quota in QUOTAS}) == len(QUOTAS)


def test_the_command_and_the_page_are_whole() -> None:
    quota = Quota("L-1", "A quota")
    assert increase_command(quota, 96, "eu-west-1") == (
        "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-1 --desired-value 96"
        " --region eu-west-1"
    )
    assert console_page(quota, "eu-west-1").startswith("https://eu-west-1.console.aws.amazon.com/servicequotas/")
