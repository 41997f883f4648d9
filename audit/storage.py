"""Where a run lies: a local folder, or any object store that fsspec reaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from rlaudit.errors import RunNotFound


class Storage(Protocol):
    """What reading a run needs of the place it lies in. Paths are relative to the run, results absolute."""

    location: str

    def read_text(self, path: str) -> str: ...
    def files(self, folder: str) -> list[str]: ...
    def open(self, path: str) -> Any: ...
    def size(self, path: str) -> int: ...


class LocalStorage:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)

    def read_text(self, path: str) -> str:
        """Text of a file of the run; FileNotFoundError, PermissionError as the system says."""
        return (self.root / path).read_text(encoding="utf-8")

    def files(self, folder: str) -> list[str]:
        """Paths of the visible files of a subfolder, sorted; empty where there is no such folder."""
        place = self.root / folder
        if not place.is_dir():
            return []
        return sorted(str(p) for p in place.iterdir() if p.is_file() and not p.name.startswith("."))

    def open(self, path: str) -> Any:
        """What pyarrow reads the file ``path`` (from ``files``) by: the path itself."""
        return path

    def size(self, path: str) -> int:
        """Bytes of a file (from ``files``)."""
        return Path(path).stat().st_size


class RemoteStorage:
    """A folder of a file system that fsspec knows (``s3://``, ``gs://``, ``memory://``, ...)."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.filesystem, self.root = fsspec.core.url_to_fs(url)
        self.protocol = url.split("://", 1)[0]
        self.location = url

    def read_text(self, path: str) -> str:
        """Text of a file of the run; FileNotFoundError where it isn't there."""
        with self.filesystem.open(f"{self.root}/{path}", "r", encoding="utf-8") as file:
            return str(file.read())

    def files(self, folder: str) -> list[str]:
        """URLs of the visible files of a subfolder, sorted; empty where there is no such folder."""
        try:
            found = self.filesystem.ls(f"{self.root}/{folder}", detail=False)
        except FileNotFoundError:
            return []
        return sorted(f"{self.protocol}://{p.lstrip('/')}" for p in found if not p.rsplit("/", 1)[-1].startswith("."))

    def open(self, path: str) -> Any:
        """A file object for the URL ``path`` (from ``files``)."""
        return self.filesystem.open(path, "rb")

    def size(self, path: str) -> int:
        """Bytes of a file (from ``files``)."""
        return int(self.filesystem.size(path))


def storage_for(path: str | Path) -> LocalStorage | RemoteStorage:
    """The storage that holds the run at ``path``. RunNotFound for a local path that is no folder."""
    if "://" in str(path):
        return RemoteStorage(str(path).rstrip("/"))
    root = Path(path).expanduser().absolute()
    if not root.exists():
        raise RunNotFound(f"there is no run at {path}: the folder does not exist")
    if not root.is_dir():
        raise RunNotFound(f"{path} is a file; give the run's folder")
    return LocalStorage(root)
