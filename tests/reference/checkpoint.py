"""A checkpoint folder: config.json beside safetensors files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llamaspec.errors import ModelLoadError
from tests.reference import quantised

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

_DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"},
    **{"F8_E4M3": "u1", "F8_E8M0": "u1", "I8": "i1", "U8": "u1"},
}


class Checkpoint:
    """Tensors by name, without the prefix "model."; remembers which were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.unread: set[str] = set()
        self._places: dict[str, tuple[Path, int, dict[str, Any]]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            for name, entry in header.items():
                self._places[name.removeprefix("model.")] = (path, 8 + size, entry)
        self.unread.update(self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def names(self, prefix: str = "", suffix: str = "") -> list[str]:
        return [n for n in self._places if n.startswith(prefix) and n.endswith(suffix)]

    def __call__(self, name: str) -> FloatArray:
        """A tensor as float32, quantised ones with their scales. Raises ModelLoadError where it is
        absent or of another kind.
        """
        raw, dtype = self._raw(name)
        if dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        if dtype == "F8_E8M0":
            return quantised.e8m0(raw)
        if dtype == "F8_E4M3" and name.endswith("_scale"):
            return quantised.e4m3(raw)
        if dtype in ("F8_E4M3", "I8", "U8"):
            return quantised.dequantise(raw, name, self.__contains__, self)
        return raw.astype(np.float32)

    def get(self, name: str) -> FloatArray | None:
        return self(name) if name in self else None

    def integers(self, name: str) -> IntArray:
        return self._raw(name)[0].astype(np.int64)

    def _raw(self, name: str) -> tuple[npt.NDArray[Any], str]:
        if name not in self._places:
            raise ModelLoadError(f"{self.folder}: there is no tensor {name!r}")
        path, start, entry = self._places[name]
        if entry["dtype"] not in _DTYPES:
            raise ModelLoadError(f"{self.folder}: tensor {name!r} has type {entry['dtype']}")
        self.unread.discard(name)
        begin, end = entry["data_offsets"]
        flat = np.fromfile(path, np.uint8, end - begin, offset=start + begin)
        return flat.view(_DTYPES[entry["dtype"]]).reshape(entry["shape"]), entry["dtype"]
