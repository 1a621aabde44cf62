"""What every ObjectStore keeps: the fake, S3's adapter on moto, S3's adapter on the embedded cloud.

Subclass ``ObjectsContract`` and give it a ``store`` fixture: an ObjectStore whose keys nobody else uses.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudtrain.provisioner.errors import Conflict, NotFound
from cloudtrain.provisioner.ports import ObjectStore

DATA = bytes(range(256)) * 50


class ObjectsContract:
    """The suite."""

    def test_what_was_written_is_read(self, store: ObjectStore) -> None:
        etag = store.put("jobs/a/record.json", DATA)
        assert store.get("jobs/a/record.json") == (DATA, etag)
        store.put("jobs/a/empty", b"")
        found = store.get("jobs/a/empty")
        assert found is not None
        assert found[0] == b""

    def test_what_is_not_there_is_none(self, store: ObjectStore, tmp_path: Path) -> None:
        assert store.get("jobs/a/nothing") is None
        with pytest.raises(NotFound):
            store.download("jobs/a/nothing", tmp_path / "nothing")
        assert list(tmp_path.iterdir()) == []

    def test_a_write_without_a_condition_replaces(self, store: ObjectStore) -> None:
        first = store.put("k", b"1")
        second = store.put("k", b"2")
        assert first != second
        assert store.get("k") == (b"2", second)

    def test_if_none_match_holds_once(self, store: ObjectStore) -> None:
        store.put("k", b"1", if_none_match=True)
        with pytest.raises(Conflict):
            store.put("k", b"1", if_none_match=True)
        with pytest.raises(Conflict):
            store.put("k", b"2", if_none_match=True)
        found = store.get("k")
        assert found is not None
        assert found[0] == b"1"

    def test_if_match_holds_while_nobody_else_wrote(self, store: ObjectStore) -> None:
        first = store.put("k", b"1")
        second = store.put("k", b"2", if_match=first)
        with pytest.raises(Conflict):
            store.put("k", b"3", if_match=first)
        assert store.get("k") == (b"2", second)

    def test_if_match_on_an_object_that_is_gone_is_a_conflict(self, store: ObjectStore) -> None:
        etag = store.put("k", b"1")
        store.delete(["k"])
        with pytest.raises(Conflict):
            store.put("k", b"2", if_match=etag)
        assert store.get("k") is None

    def test_of_many_writers_one_wins(self, store: ObjectStore) -> None:
        etag = store.put("k", b"0")

        def write(number: int) -> bool:
            try:
                store.put("k", b"%d" % number, if_match=etag)
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(write, range(1, 9)))
        assert sum(won) == 1
        found = store.get("k")
        assert found is not None
        assert found[0] == b"%d" % (won.index(True) + 1)

    def test_a_list_is_by_prefix_with_sizes(self, store: ObjectStore) -> None:
        for key, data in {"p/a": b"1", "p/b/c": b"22", "q": b"333", "p": b""}.items():
            store.put(key, data)
        assert list(store.list("p/")) == [("p/a", 1), ("p/b/c", 2)]
        assert list(store.list("nothing/")) == []

    def test_a_download_replaces_the_file_whole(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put("k", DATA)
        path = tmp_path / "里 a file"
        path.write_bytes(b"old" * 99_999)
        store.download("k", path)
        assert path.read_bytes() == DATA
        assert list(tmp_path.iterdir()) == [path]

    def test_delete_takes_many_and_misses_none(self, store: ObjectStore) -> None:
        for number in range(3):
            store.put(f"d/{number}", b"x")
        store.delete([f"d/{number}" for number in range(9)])
        store.delete([])
        assert list(store.list("d/")) == []

    def test_keys_may_hold_what_s3_allows(self, store: ObjectStore) -> None:
        for key in ("o/with space", "o/ünï/名", "o/a+b=c&d?e", "o/%41", 'o/quote"s'):
            store.put(key, key.encode())
            found = store.get(key)
            assert found is not None
            assert found[0] == key.encode()
        assert [key for key, _ in store.list("o/")] == sorted(
            ["o/with space", "o/ünï/名", "o/a+b=c&d?e", "o/%41", 'o/quote"s'], key=str.encode
        )
