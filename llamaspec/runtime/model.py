"""A loaded GGUF and its vocabulary."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from llamaspec.errors import ModelLoadError
from llamaspec.ffi import ffi, lib
from llamaspec.runtime import backend, log
from llamaspec.runtime.description import DRAFT_ARCHITECTURE, FileDescription
from llamaspec.runtime.handle import NativeHandle
from llamaspec.runtime.placement import Placement
from llamaspec.runtime.vocab import Vocab

ON_CPU = Placement(n_gpu_layers=0)
_SPLIT_MODES = {
    "none": lib.LLAMA_SPLIT_MODE_NONE,
    "layer": lib.LLAMA_SPLIT_MODE_LAYER,
    "row": lib.LLAMA_SPLIT_MODE_ROW,
    "tensor": lib.LLAMA_SPLIT_MODE_TENSOR,
}


class Model(NativeHandle):
    """Weights in memory. Contexts made from a model keep it alive."""

    path: Path
    vocab: Vocab
    n_embd: int
    n_layer: int
    n_ctx_train: int

    @classmethod
    def load(cls, path: Path, placement: Placement = ON_CPU) -> Self:
        """Load a GGUF that has passed `gguf_file`'s checks.

        Raises ModelLoadError with llama.cpp's reason.
        """
        return cls._made(path, placement, lib.ls_model_load)

    @classmethod
    def plan(cls, file: FileDescription, placement: Placement = ON_CPU) -> Self:
        """The same without weights and tokens: contexts on it take no memory and cannot compute,
        and tell what they would take (`runtime/forecast.py`).
        """
        # a file without tokens says its number otherwise, or is refused by the loading that follows
        key = f"{file.architecture}.vocab_size".encode()
        return cls._made(file.path, placement, lib.ls_model_plan, key, file.n_vocab)

    @classmethod
    def _made(
        cls,
        path: Path,
        placement: Placement,
        make: Callable[..., Any],
        *more: Any,  # noqa: ANN401
    ) -> Self:
        backend.initialise()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = placement.n_gpu_layers
        params.split_mode = _SPLIT_MODES[placement.split_mode]
        names = [ffi.new("char[]", name.encode()) for name in placement.devices]
        chosen = [lib.ggml_backend_dev_by_name(name) for name in names]
        listed = ffi.new("ggml_backend_dev_t[]", [*chosen, ffi.NULL])
        # an empty list would mean no device at all, at which llama.cpp has crashed
        params.devices = listed if chosen else ffi.NULL
        native = ffi.new("struct llama_model_params *", params)
        ptr = make(os.fsencode(path), native, *more)
        lines = log.drain()
        if not ptr:
            raise ModelLoadError(f"{path.name}: llama.cpp cannot load it: {log.reason(lines)}")
        model = cls(ptr, lib.llama_model_free)
        model.path = path
        model._check_decoder()
        model.vocab = Vocab(model)
        model.n_embd = lib.llama_model_n_embd(ptr)
        model.n_layer = lib.llama_model_n_layer(ptr)
        model.n_ctx_train = lib.llama_model_n_ctx_train(ptr)
        return model

    def _check_decoder(self) -> None:
        # llama.cpp ends the process where a decoder's encoder has not run; a draft's is the `fc`
        if self._meta("general.architecture") == DRAFT_ARCHITECTURE:
            return
        if lib.llama_model_has_encoder(self.ptr) or not lib.llama_model_has_decoder(self.ptr):
            self.close()
            raise ModelLoadError(
                f"{self.path.name}: has an encoder, llamaspec runs models of a decoder alone"
            )

    def _meta(self, key: str) -> str:
        text = ffi.new("char[]", 64)
        length = lib.ls_model_meta(self.ptr, key.encode(), text, 64)
        return str(ffi.string(text).decode("utf-8", "replace")) if length >= 0 else ""

    @property
    def recurrent(self) -> bool:
        """Whether it keeps a state that every token overwrites, alone or beside a KV cache."""
        ptr = self.ptr
        return bool(lib.llama_model_is_recurrent(ptr) or lib.llama_model_is_hybrid(ptr))
