"""A checkpoint folder: config.json and the safetensors shards that are needed of it."""

import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Self

from llamaspec.convert.safetensors import Entry, SafetensorsFile
from llamaspec.convert.settings import Settings, first_architecture
from llamaspec.convert.shown import shown
from llamaspec.convert.weights import Kind, Piece, Weights
from llamaspec.errors import ModelLoadError

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_JSON = 64 << 20
_MAX_DEPTH = 50
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PLAIN: dict[str, Kind] = {"F32": "F32", "F16": "F16", "BF16": "BF16"}


def read_json(path: Path, limit: int = MAX_JSON) -> Any:  # noqa: ANN401
    """A parsed JSON file.

    Raises:
        ModelLoadError: missing, too large, no JSON, nested without end, or a key given twice.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelLoadError(f"{path}: is not a regular file")
        if status.st_size > limit:
            raise ModelLoadError(f"{path}: has {status.st_size} bytes, the limit is {limit}")
        value = json.loads(path.read_bytes(), object_pairs_hook=_once)
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: is no JSON ({' '.join(str(error).split())[:120]})") from None
    if _depth(value) > _MAX_DEPTH:
        raise ModelLoadError(f"{path}: is nested more than {_MAX_DEPTH} levels deep")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it gives {shown(twice)} twice, and which counts cannot be known")
    return found


def _depth(value: object) -> int:
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        if depth > _MAX_DEPTH:
            break
        level = [
            inner for item in level for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return depth


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as an object. Raises ModelLoadError where there is none."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "there is no such folder"
        raise ModelLoadError(f"{folder}: {what}; give a checkpoint's folder, with its {CONFIG}")
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict):
        raise ModelLoadError(f"{folder / CONFIG}: is no JSON object")
    return config


def shard_names(folder: Path, wanted: Callable[[str], bool]) -> list[str]:
    """The files that hold the wanted tensors, by the index where there is one.

    Raises:
        ModelLoadError: no safetensors, or an index that names files outside of the folder.
    """
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX)
        weight_map = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelLoadError(f"{folder / INDEX}: has no weight_map")
        for name, file in weight_map.items():
            if not isinstance(file, str) or not _inside(file):
                raise ModelLoadError(
                    f"{folder / INDEX}: puts {shown(name)} into {shown(file)}, which is no "
                    ".safetensors file of the folder"
                )
        return sorted({file for name, file in weight_map.items() if wanted(name)})
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if SINGLE in found:
        return [SINGLE]
    if found:
        return found
    pickles = [path.name for path in sorted(folder.iterdir()) if path.suffix in _PICKLES]
    if pickles:
        raise ModelLoadError(
            f"{folder}: its weights are pickled ({pickles[0]}), and opening a pickle runs code of "
            "whoever made it; save them as safetensors"
        )
    raise ModelLoadError(f"{folder}: has no .safetensors file")


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    plain = re.fullmatch(r"[^\x00-\x1f\\:\ud800-\udfff]+\.safetensors", name) is not None
    return plain and not path.is_absolute() and ".." not in path.parts


class Checkpoint:
    """An open checkpoint; a context manager.

    Attributes:
        folder: where it is.
        settings: its config.json.
        architecture: `architectures[0]`, "" where the file has none.
        files: the shards that were opened.
    """

    def __init__(self, folder: Path, settings: Settings, files: Iterable[SafetensorsFile]) -> None:
        self.folder = folder
        self.settings = settings
        self.architecture = first_architecture(settings.config)
        self.files = tuple(files)
        self._where: dict[str, SafetensorsFile] = {}
        for file in self.files:
            for name in file.entries:
                if name in self._where:
                    raise ModelLoadError(
                        f"{folder}: tensor {shown(name)} is in {self._where[name].path.name} "
                        f"and in {file.path.name}"
                    )
                self._where[name] = file

    @classmethod
    def open(
        cls,
        folder: Path,
        overrides: Mapping[str, Any] | None = None,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> Self:
        """Open a folder's configuration, and the shards that hold wanted tensors.

        Args:
            folder: with config.json and safetensors, one file or several with an index.
            overrides: settings that replace the configuration's.
            wanted: whether a tensor of that name is needed; other shards stay shut.

        Raises:
            ModelLoadError: anything missing, malformed, or outside of the folder.
        """
        settings = Settings(folder / CONFIG, read_config(folder), overrides)
        opened: list[SafetensorsFile] = []
        try:
            for name in shard_names(folder, wanted):
                opened.append(SafetensorsFile.open(_kept_in(folder, name)))
            found = cls(folder, settings, opened)
            found._check_index(wanted)
        except BaseException:
            for file in opened:
                file.close()
            raise
        return found

    def with_settings(self, settings: Settings) -> "Checkpoint":
        """The same open shards under another reading of the configuration."""
        return Checkpoint(self.folder, settings, self.files)

    @property
    def entries(self) -> dict[str, Entry]:
        """Every tensor of the opened shards."""
        return {name: file.entries[name] for name, file in self._where.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def raw(self, name: str, start: int, stop: int) -> Piece:
        """Rows of a tensor as stored, of any type."""
        return self._where[name].rows(name, start, stop)

    def whole(self, name: str) -> Piece:
        """All of a small tensor, as stored."""
        shape = self.entry(name).shape
        return self.raw(name, 0, shape[0] if shape else 1).reshape(shape)

    def entry(self, name: str) -> Entry:
        """A tensor's type and shape. Raises ModelLoadError where there is no such tensor."""
        if name not in self._where:
            raise ModelLoadError(f"{self.folder}: there is no tensor {name!r}")
        return self._where[name].entries[name]

    def weights(self, name: str) -> Weights:
        """A plain float tensor. Raises ModelLoadError for another type, with what to do."""
        entry = self.entry(name)
        if entry.dtype == "F64" or entry.dtype not in _PLAIN:
            raise ModelLoadError(
                f"{self.folder}: tensor {shown(name)} has the type {entry.dtype} and no scale that "
                "belongs to it; only F32, F16 and BF16 can be taken as they are"
            )
        return Weights(
            entry.shape or (1,),
            _PLAIN[entry.dtype],
            lambda start, stop: self.raw(name, start, stop),
            (name,),
        )

    def digests(self) -> dict[str, str]:
        """sha256 in hex of config.json and of every opened shard, by file name."""
        found = {}
        for path in [self.folder / CONFIG, *sorted(file.path for file in self.files)]:
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        return found

    def close(self) -> None:
        """Unmap the shards."""
        for file in self.files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_index(self, wanted: Callable[[str], bool]) -> None:
        if not (self.folder / INDEX).exists():
            return
        listed = {
            n: f for n, f in read_json(self.folder / INDEX)["weight_map"].items() if wanted(n)
        }
        for name, file in listed.items():
            if name not in self._where:
                raise ModelLoadError(
                    f"{self.folder}: the index puts tensor {shown(name)} into {file}, "
                    "which lacks it"
                )


def _kept_in(folder: Path, name: str) -> Path:
    """A shard's path, unless it is a link that leads out of the folder (or of the Hub's cache)."""
    path, home = folder / name, Path(os.path.realpath(folder))
    # the Hub's cache keeps files in blobs/, and links to them in snapshots/REVISION/
    cache = home.parent.parent if home.parent.name == "snapshots" else home
    real = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError where links go round
    blobs = cache / "blobs" if cache != home else home
    if not (real.is_relative_to(home) or real.is_relative_to(blobs)):
        raise ModelLoadError(f"{path}: is a link to {real}, outside of the folder")
    return path
