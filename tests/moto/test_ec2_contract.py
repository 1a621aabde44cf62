from __future__ import annotations

from typing import ClassVar

import pytest

from tests.contract.cloud_contract import CloudContract
from tests.moto.worlds import MotoWorld


class TestEc2OnMoto(CloudContract):
    """EC2's adapter on plain moto, which has EC2's replies and not its meaning (moto 5.2.5)."""

    lacks: ClassVar[dict[str, str]] = {
        "test_the_same_request_again_is_the_same_machine": "moto stores ClientToken and ignores it",
        "test_another_request_under_the_token_is_refused": "moto stores ClientToken and ignores it",
        "test_the_token_of_a_terminated_machine_is_spent": "moto stores ClientToken and ignores it",
        "test_a_lost_reply_leaves_one_machine": "moto stores ClientToken and ignores it",
        "test_a_spot_machine_has_a_request_that_is_fulfilled": "moto makes no spot request for RunInstances",
        "test_an_interruption_shows_while_the_machine_still_runs": "moto never takes a spot machine back",
        "test_the_group_of_a_machine_that_lives_stays": "moto deletes a group that an interface uses",
    }

    @pytest.fixture
    def world(self, moto_world: MotoWorld) -> MotoWorld:
        return moto_world
