"""A launch that a quota refused is told which, what it needs, what there is, and how to ask for more."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from cloudtrain.pricing.model import Pool
from cloudtrain.provisioner.account.quotas import shortage
from cloudtrain.provisioner.adapters.aws_errors import translate
from cloudtrain.provisioner.adapters.quota_lookup import named
from cloudtrain.provisioner.errors import QuotaExceeded
from tests.unit.test_aws_errors import refused

G_SPOT = Pool.parse("aws/us-east-1/use1-az4/g4dn.xlarge/spot")
P_DEMAND = Pool.parse("aws/us-east-1/use1-az4/p5.48xlarge/on-demand")
P6_SPOT = Pool.parse("aws/us-east-1/use1-az4/p6-b200.48xlarge/spot")
VCPU = (
    "You have requested more vCPU capacity than your current vCPU limit of 32 allows for the instance bucket that the "
    "specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an "
    "adjustment to this limit."
)


class Quotas:
    """Service Quotas that answers so."""

    def __init__(self, answer: float | Exception) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def client(self, service: str, region: str) -> Quotas:
        assert (service, region) == ("service-quotas", "us-east-1")
        return self

    def get_service_quota(self, **given: str) -> dict[str, Any]:
        self.asked.append(given["QuotaCode"])
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"Quota": {"Value": self.answer}}


def said(code: str, message: str, pool: Pool, quotas: Quotas) -> str:
    cause = refused(code, message)
    error = translate(cause, f"launch in {pool}", launching=True)
    assert isinstance(error, QuotaExceeded)
    error.__cause__ = cause
    clients: Any = quotas
    found = named(clients, error, pool)
    assert (found.code, found.scope) == (error.code, error.scope)
    assert len(str(found).splitlines()) == 1
    return str(found)


def test_the_limit_that_ec2_tells_is_taken_and_what_is_missing_follows() -> None:
    quotas = Quotas(0.0)
    text = said("VcpuLimitExceeded", VCPU, P_DEMAND, quotas)
    assert (
        "quota 'Running On-Demand P instances' (L-417A185B) in us-east-1: p5.48xlarge needs 192 vCPUs, "
        "the quota is 32, 160 are missing; ask for more: `aws service-quotas request-service-quota-increase "
        "--service-code ec2 --quota-code L-417A185B --desired-value 224 --region us-east-1`"
    ) in text
    assert quotas.asked == [], "no second call where the first told"


def test_a_spot_quota_is_looked_up_since_ec2_tells_no_number() -> None:
    quotas = Quotas(8.0)
    text = said("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded", G_SPOT, quotas)
    assert quotas.asked == ["L-3819A6DF"]
    assert "'All G and VT Spot Instance Requests' (L-3819A6DF)" in text
    assert "needs 4 vCPUs, the quota is 8 and more than 4 of them are in use" in text


@pytest.mark.parametrize(
    "trouble", [refused("AccessDeniedException"), EndpointConnectionError(endpoint_url="https://quotas")]
)
def test_a_quota_that_can_not_be_looked_up_is_named_all_the_same(trouble: Exception) -> None:
    text = said("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded", G_SPOT, Quotas(trouble))
    assert "(L-3819A6DF) in us-east-1: g4dn.xlarge needs 4 vCPUs; ask for more" in text


def test_a_quota_that_nobody_documents_is_not_made_up() -> None:
    text = said("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded", P6_SPOT, Quotas(0.0))
    assert "L-" not in text
    assert "Service Quotas console" in text


def test_a_quota_of_the_region_is_left_as_it_is() -> None:
    text = said("VolumeLimitExceeded", "You have exceeded your maximum gp3 storage limit.", G_SPOT, Quotas(0.0))
    assert "gp3 storage limit" in text
    assert "L-" not in text


def test_without_the_types_vcpus_the_page_is_named() -> None:
    text = shortage(G_SPOT, None, 8.0)
    assert text is not None
    assert "console.aws.amazon.com/servicequotas" in text
    assert ": the quota is 8;" in text
