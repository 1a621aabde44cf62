"""The metadata service: tokens, notices, and the days when it is not well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloudtrain.trainer.agent.notices import ALARM_AFTER, Imds, ImdsError, Interruption, Watcher
from tests.e2e.agent_site import Metadata, metadata_server


@pytest.fixture
def served() -> Iterator[tuple[Metadata, Imds]]:
    with metadata_server() as (metadata, endpoint):
        yield metadata, Imds(endpoint)


def test_no_notice_is_no_error(served: tuple[Metadata, Imds]) -> None:
    metadata, imds = served
    assert imds.interruption() is None
    assert imds.rebalance() is None
    assert metadata.asked == ["PUT", "meta-data/spot/instance-action", "meta-data/events/recommendations/rebalance"]


def test_a_notice_says_when(served: tuple[Metadata, Imds]) -> None:
    metadata, imds = served
    metadata.documents["meta-data/spot/instance-action"] = '{"action": "terminate", "time": "2026-11-30T10:00:00Z"}'
    metadata.documents["meta-data/events/recommendations/rebalance"] = '{"noticeTime": "2026-11-30T09:00:00Z"}'
    assert imds.interruption() == Interruption("terminate", 1796032800.0)
    assert imds.rebalance() == 1796032800.0 - 3600


def test_an_expired_token_is_renewed_at_once(served: tuple[Metadata, Imds]) -> None:
    metadata, imds = served
    imds.interruption()
    metadata.expire()
    assert imds.interruption() is None
    assert metadata.asked.count("PUT") == 2


def test_a_service_that_fails_is_counted_and_told_and_comes_back(served: tuple[Metadata, Imds]) -> None:
    metadata, imds = served
    watcher = Watcher(imds, 0.1)
    metadata.refuse_tokens = True
    for _ in range(ALARM_AFTER - 1):
        watcher.poll()
    assert watcher.lines() == ()
    watcher.poll()
    assert watcher.lines()[0].startswith("notices: the metadata service failed 12 times")
    assert watcher.refused_since is None, "it is there"
    metadata.refuse_tokens = False
    metadata.notice(60)
    watcher.poll()
    assert watcher.failures == 0 and watcher.lines() == ()
    assert watcher.interruption is not None


def test_401_for_ever_ends(served: tuple[Metadata, Imds]) -> None:
    metadata, imds = served
    metadata.tokens = Forgetful()
    with pytest.raises(ImdsError, match="401"):
        imds.interruption()


class Forgetful(set[str]):
    def add(self, _element: str) -> None:
        pass


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"action": "terminate", "time": "soon"}', '{"action": 1}'])
def test_nonsense_is_an_error_and_no_notice(served: tuple[Metadata, Imds], text: str) -> None:
    metadata, imds = served
    metadata.documents["meta-data/spot/instance-action"] = text
    with pytest.raises(ImdsError):
        imds.interruption()
    metadata.documents["meta-data/events/recommendations/rebalance"] = text
    with pytest.raises(ImdsError):
        imds.rebalance()


def test_nobody_there_is_told_apart_from_a_slow_one() -> None:
    watcher = Watcher(Imds("http://127.0.0.1:9"), 0.1)
    watcher.poll()
    assert watcher.refused_since is not None
    first = watcher.refused_since
    watcher.poll()
    assert watcher.refused_since == first and watcher.failures == 2


def test_a_notice_is_not_forgotten(served: tuple[Metadata, Imds]) -> None:
    metadata, imds = served
    watcher = Watcher(imds, 0.1)
    metadata.notice(60)
    watcher.poll()
    metadata.documents.clear()
    watcher.poll()
    assert watcher.interruption is not None


def test_a_rebalance_recommendation_is_shown(served: tuple[Metadata, Imds]) -> None:
    metadata, imds = served
    metadata.documents["meta-data/events/recommendations/rebalance"] = '{"noticeTime": "2026-11-30T09:00:00Z"}'
    watcher = Watcher(imds, 0.1)
    watcher.poll()
    assert watcher.lines() == ("rebalance: EC2 expects to take this machine before long",)
    assert watcher.interruption is None
