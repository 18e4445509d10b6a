"""The KV cache of a context, sequence by sequence: cut, copied, saved and put back."""

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from llamaspec.errors import DecodeError
from llamaspec.ffi import ffi, lib
from llamaspec.runtime import log
from llamaspec.runtime.handle import NativeHandle
from llamaspec.runtime.model import Model


@dataclass(frozen=True, slots=True)
class State:
    """What a cache held of a sequence, in memory of our own. data [bytes], length: in positions."""

    data: npt.NDArray[np.uint8]
    length: int
    checksum: int

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class KVCache(NativeHandle):
    """What a context keeps of each of its sequences."""

    model: Model
    _memory: Any

    @property
    def can_save(self) -> bool:
        """Whether `save` is possible. What llama.cpp saves of a sliding window is the window at the
        text's end alone, from which no shorter beginning can be had; a recurrent state has none.
        """
        return not self.model.recurrent and not self.model.sliding

    def truncate(self, seq: int, length: int) -> bool:
        """Drop the positions from `length` on of sequence `seq` from the KV cache. Returns True."""
        _ = self.ptr
        if not lib.llama_memory_seq_rm(self._memory, seq, length, -1):
            raise DecodeError(f"{self.model.path.name}: cannot drop the positions from {length} on")
        return True

    def length(self, seq: int) -> int:
        """How many positions of sequence `seq` the KV cache holds."""
        _ = self.ptr
        return int(lib.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def copy(self, source: int, seq: int, length: int) -> None:
        """Have sequence `seq` hold the first `length` positions of another one, instead of its own.

        In a cache for all sequences the two share the cells; where each has a cache of its own they
        are copied at once (patch 0021). Not for recurrent state.
        """
        assert not self.model.recurrent, "a state has no beginning"
        self.truncate(seq, 0)
        if length:
            lib.llama_memory_seq_cp(self._memory, source, seq, -1, length)

    def state_size(self, seq: int) -> int:
        """The bytes of what `save` would return."""
        return int(lib.llama_state_seq_get_size_ext(self.ptr, seq, 0))

    def save(self, seq: int) -> State:
        """Copy all that the cache holds of a sequence. Raises DecodeError where it cannot."""
        assert self.can_save, "what is saved would not be the whole sequence"
        self.model.check_servers()
        data = np.empty(self.state_size(seq), np.uint8)
        written = lib.llama_state_seq_get_data_ext(self.ptr, _pointer(data), data.size, seq, 0)
        self.model.check_servers()
        if written != data.size:
            reason = log.reason(log.drain())
            raise DecodeError(f"{self.model.path.name}: a sequence cannot be saved: {reason}")
        return State(data, self.length(seq), _checksum(data))

    def restore(self, seq: int, state: State) -> bool:
        """Put back what was saved, of this sequence or another one, instead of what `seq` holds.

        Returns False where it is damaged or finds no room; the sequence is empty then.
        """
        self.truncate(seq, 0)
        if _checksum(state.data) == state.checksum:
            data = _pointer(state.data)
            read = lib.llama_state_seq_set_data_ext(self.ptr, data, state.nbytes, seq, 0)
            if read == state.nbytes and self.length(seq) == state.length:
                return True
            log.drain()
        self.truncate(seq, 0)
        return False


def _checksum(data: npt.NDArray[np.uint8]) -> int:
    # a sum of words is read as fast as memory is, where crc32 would take longer than the copy
    words = data[: data.size // 8 * 8].view(np.uint64)
    return int(words.sum(dtype=np.uint64)) ^ crc32(data[words.nbytes :].data)


def _pointer(data: npt.NDArray[np.uint8]) -> Any:  # noqa: ANN401
    return ffi.from_buffer("uint8_t[]", data)
