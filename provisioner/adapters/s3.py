"""The ObjectStore port on S3, through the one client factory. What S3 is asked, and how, is ``trainer.storage``'s."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from botocore.exceptions import BotoCoreError

from cloudtrain.provisioner.adapters.aws_errors import translate
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.errors import Conflict, NotFound
from cloudtrain.trainer import storage
from cloudtrain.trainer.agent import objects


class S3ObjectStore:
    """One bucket. ``is_dead`` says whether the embedded cloud has died; None on AWS. Thread-safe."""

    def __init__(
        self, clients: Clients, bucket: str, region: str, *, is_dead: Callable[[], bool] | None = None
    ) -> None:
        self._clients = clients
        self._bucket = bucket
        self._region = region
        self._is_dead = is_dead

    def get(self, key: str) -> tuple[bytes, str] | None:
        """The object's bytes and its ETag; None where there is none."""
        with self._opened() as bucket:
            return bucket.get(key)

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """Write an object; returns its new ETag. Raises Conflict when a condition does not hold."""
        with self._opened() as bucket:
            return bucket.put(key, data, if_match=if_match, if_none_match=if_none_match)

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Key and size in bytes of every object under the prefix."""
        with self._opened() as bucket:
            return bucket.list(prefix)

    def download(self, key: str, path: Path) -> None:
        """Write the object to a file, replaced whole. Raises NotFound."""
        with self._opened() as bucket:
            bucket.download(key, path)

    def upload(self, path: Path, key: str) -> None:
        """Write a file, of whatever size, as an object."""
        with self._opened() as bucket:
            bucket.upload_file(path, key)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; a missing one is no error."""
        with self._opened() as bucket:
            bucket.delete(keys)

    @contextmanager
    def _opened(self) -> Iterator[storage.S3Objects]:
        try:
            yield storage.S3Objects(self._clients.client("s3", self._region), self._bucket)
        except objects.Conflict as error:
            raise Conflict(str(error)) from error
        except storage.ObjectMissing as error:
            raise NotFound(str(error)) from error
        except objects.ObjectsError as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            raise translate(cause, f"bucket {self._bucket}", is_dead=self._is_dead) from error
        except BotoCoreError as error:  # from making the client: a profile that is not there, say
            raise translate(error, f"bucket {self._bucket}", is_dead=self._is_dead) from error
