"""The embedded cloud's account in which nothing was set up. Each test has one of its own."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from cloudtrain.provisioner.account.setup_plan import wanted
from cloudtrain.provisioner.adapters.account_parts import account, parts
from cloudtrain.provisioner.adapters.account_setup import State, carry_out, find_bucket, survey
from cloudtrain.provisioner.adapters.identity import identify
from cloudtrain.provisioner.localcloud.client import ACCOUNT
from cloudtrain.provisioner.localcloud.plants import SPOT_ROLE
from tests.moto.accounts import BUCKET, PROFILE, code, machine, states
from tests.moto.local_server import REGION, serving


def test_an_empty_account_has_nothing_until_setup(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("empty"), account="empty") as empty:
        me, it = identify(empty.clients, REGION), wanted(ACCOUNT, REGION, "me")
        s3, iam = empty.clients.client("s3", REGION), empty.clients.client("iam", REGION)
        assert find_bucket(empty.clients, me, REGION) is None
        assert code(lambda: s3.list_objects_v2(Bucket=BUCKET)) == "NoSuchBucket"
        assert code(lambda: iam.get_role(RoleName=SPOT_ROLE)) == "NoSuchEntity"
        with pytest.raises(ClientError, match=r"Invalid IAM Instance Profile name") as caught:
            empty.run(**PROFILE)
        assert caught.value.response["Error"]["Code"] == "InvalidParameterValue"
        assert set(states(empty, it).values()) == {State.MISSING}
        made = list(carry_out(survey(parts(account(empty.clients, me, it)))))
        assert [one.trouble for one in made] == [None] * len(made)
        assert set(states(empty, it).values()) == {State.THERE}
        assert iam.get_role(RoleName=SPOT_ROLE)["Role"]["Path"] == "/aws-service-role/spot.amazonaws.com/"
        on_it = machine(empty)
        on_it("s3").put_object(Bucket=BUCKET, Key="jobs/a/1", Body=b"1")
        assert code(lambda: on_it("s3").put_object(Bucket=BUCKET, Key="control/a/1", Body=b"1")) == "AccessDenied"


def test_a_spot_launch_makes_the_spot_role(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("spot"), account="empty") as empty:
        iam = empty.clients.client("iam", REGION)
        empty.run(InstanceMarketOptions=None)
        assert code(lambda: iam.get_role(RoleName=SPOT_ROLE)) == "NoSuchEntity"
        empty.run()
        assert code(lambda: iam.get_role(RoleName=SPOT_ROLE)) == ""
