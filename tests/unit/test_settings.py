"""Configuration: which source wins, and what is refused where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.settings import KEYS, Setting, Sources, edited, from_env, merge, read, refusal

GOOD = {"cloud": "local", "region": "us-west-2", "bucket": "my-bucket", "output": "json"}


def test_every_key_has_a_good_value_here() -> None:
    assert list(GOOD) == list(KEYS)
    assert [refusal(key, value) for key, value in GOOD.items()] == [None] * len(KEYS)


layers = st.dictionaries(
    st.sampled_from(list(KEYS)), st.builds(Setting, st.sampled_from("abc"), st.sampled_from("xyz"))
)


@given(layers, layers, layers)
def test_the_first_source_that_sets_a_key_wins(
    env: dict[str, Setting], project: dict[str, Setting], user: dict[str, Setting]
) -> None:
    assert merge(env, project, user) == user | project | env


def test_variables_projects_and_users_in_that_order(tmp_path: Path) -> None:
    project, user = tmp_path / "cloudtrain.yaml", tmp_path / "config.yaml"
    project.write_text("# ours\n\nregion: us-east-2\noutput: json\n")
    user.write_text("output: table\nbucket: 'mine-1'\n")
    found = Sources({"CLOUDTRAIN_REGION": "eu-west-1", "CLOUDTRAIN_CLOUD": ""}, project, user).found()
    assert found == {
        "region": Setting("eu-west-1", "CLOUDTRAIN_REGION"),
        "bucket": Setting("mine-1", f"{user}:2"),
        "output": Setting("json", f"{project}:4"),
    }


def test_no_file_and_an_empty_file_set_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_bytes(b"\xef\xbb\xbf\r\n# nothing yet\r\n")
    assert Sources({}, None, tmp_path / "none.yaml").found() == Sources({}, empty, empty).found() == {}


def test_the_nearest_project_upwards_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "cloudtrain.yaml").write_text("cloud: aws\n")
    (tmp_path / "a" / "cloudtrain.yaml").write_text("cloud: local\n")
    monkeypatch.chdir(deep)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    here = Sources.here()
    assert (here.project, here.user) == (tmp_path / "a" / "cloudtrain.yaml", tmp_path / "xdg/cloudtrain/config.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("regoin: us-east-1", ":1:1: unknown key `regoin`: did you mean `region`?"),
        ("cloud: aws\nzzz: 1", ":2:1: unknown key `zzz`: known are cloud, region, bucket, output"),
        ("cloud: gcp", ":1:8: cloud 'gcp': write aws or local"),
        ("cloud: lokal", ":1:8: cloud 'lokal': did you mean local?"),
        ("region: Virginia", ":1:9: region 'Virginia': write an AWS region, such as us-east-1"),
        ("bucket: s3://mine", ":1:9: bucket 's3://mine': write a bucket's name, without s3://"),
        ("output: csv", "output 'csv': write table or json"),
        ("output: no", "YAML reads no as true or false: put it in quotes"),
        ("cloud: aws\ncloud: local", ":2:1: `cloud` is already set in line 1"),
        ("- cloud", "`key: value` lines, not a list"),
        ("run: python train.py", ":1:1: `run` belongs into a job file; cloudtrain.yaml holds settings"),
        ("cloud: aws\n\tx: y", ":2:1: YAML allows no tab here"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "cloudtrain.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"cloud: \xff")
    with pytest.raises(UsageError, match="UTF-8"):
        read(path)


@pytest.mark.parametrize("key", list(KEYS))
def test_a_wrong_variable_is_named(key: str) -> None:
    with pytest.raises(UsageError, match=f"^CLOUDTRAIN_{key.upper()}: {key} '//'"):
        from_env({f"CLOUDTRAIN_{key.upper()}": "//"})


def test_an_edit_leaves_every_other_line(tmp_path: Path) -> None:
    before = "# mine\nregion: us-east-1  # near\nbucket:\n  mine-1\noutput: json\n"
    assert edited(before, "region", "eu-west-1") == "# mine\nbucket:\n  mine-1\noutput: json\nregion: eu-west-1\n"
    assert edited(before, "bucket", None) == "# mine\nregion: us-east-1  # near\noutput: json\n"
    path = tmp_path / "config.yaml"
    path.write_text(edited("", "cloud", "local"))
    assert read(path) == {"cloud": Setting("local", f"{path}:1")}
