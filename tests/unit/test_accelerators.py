"""The accelerator grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.pricing import catalog
from cloudtrain.pricing.accelerators import KNOWN, Accelerator, AcceleratorError, canonical, combine, parse

ONE = st.one_of(
    st.builds(Accelerator, name=st.sampled_from(KNOWN), count=st.integers(1, 999)),
    st.builds(Accelerator, name=st.none(), count=st.integers(1, 999), min_memory_gb=st.integers(0, 9999)),
)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("A100:8", (Accelerator("A100", 8),)),
        ("a100-80gb:8", (Accelerator("A100-80GB", 8),)),
        ("A100-40GB:8", (Accelerator("A100", 8),)),
        ("T4", (Accelerator("T4", 1),)),
        (" t4 : 2 ", (Accelerator("T4", 2),)),
        ("24GB+:1", (Accelerator(None, 1, min_memory_gb=24),)),
        ("24gb+", (Accelerator(None, 1, min_memory_gb=24),)),
        ("{A100: 8, h100:8}", (Accelerator("A100", 8), Accelerator("H100", 8))),
        ("[H100:8, A100:8]", (Accelerator("H100", 8, rank=0), Accelerator("A100", 8, rank=1))),
        ("[T4]", (Accelerator("T4", 1),)),
    ],
)
def test_what_a_text_means(text: str, want: tuple[Accelerator, ...]) -> None:
    assert parse(text) == want


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no accelerator named"),
        (":8", "no accelerator named"),
        ("[]", "no accelerator named"),
        ("{A100:8,}", "no accelerator named"),
        ("A10:8", "did you mean A10G?"),
        ("H10:8", "did you mean H100?"),
        ("RTXPRO6000", "did you mean RTX-PRO-6000?"),
        ("TPU-v5e:4", "known are V100,"),
        ("T4:0", "whole number from 1"),
        ("T4:-1", "whole number from 1"),
        ("T4:0.5", "whole number from 1"),
        ("T4:٣", "whole number from 1"),
        ("T4:", "whole number from 1"),
        ("T4:1:1", "whole number from 1"),
        ("24GB:1", "24GB+:1"),
        ("24G+", "24GB+:1"),
        ("[T4:1", "unknown accelerator"),
        ("{T4, t4:1}", "T4:1 is named twice"),
    ],
)
def test_a_wrong_text_is_refused_with_the_nearest(text: str, says: str) -> None:
    with pytest.raises(AcceleratorError) as refusal:
        parse(text)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


@given(st.lists(ONE, min_size=1, max_size=5, unique_by=str), st.booleans())
def test_the_canonical_text_reads_back(accelerators: list[Accelerator], ordered: bool) -> None:
    value = combine([str(accelerator) for accelerator in accelerators], ordered=ordered)
    assert parse(canonical(value)) == value
    assert [str(one) for one in value] == [str(one) for one in accelerators]


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        value = parse(text)
    except AcceleratorError:
        return
    assert parse(canonical(value)) == value


def test_known_names_are_the_catalogues() -> None:
    assert set(KNOWN) == {instance.accelerator for instance in catalog.load().instances}


def test_marketed_memory_counts() -> None:
    fits = {i.accelerator for i in catalog.load().instances if parse("24GB+:1")[0].fits(i)}
    assert {"A10G", "L4", "L40S", "H100"} <= fits
    assert not fits & {"T4", "T4G", "V100"}
