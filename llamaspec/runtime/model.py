"""A loaded GGUF and its vocabulary."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from llamaspec.errors import DecodeError, ModelLoadError
from llamaspec.ffi import ffi, lib
from llamaspec.runtime import backend, log, remote
from llamaspec.runtime.description import DRAFT_ARCHITECTURE, FileDescription
from llamaspec.runtime.handle import NativeHandle
from llamaspec.runtime.placement import CPU, Placement
from llamaspec.runtime.vocab import Vocab

ON_CPU = Placement(n_gpu_layers=0)
_TABLES = rb"^(token_embd|output)\."
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
    # the RPC servers that have part of it, with how many connections to each had been lost before
    _servers: dict[str, int]

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
        servers = {server: remote.losses(server) for server in placement.servers}
        chosen = [remote.pointer(name) for name in placement.devices]
        listed = ffi.new("ggml_backend_dev_t[]", [*chosen, ffi.NULL])
        # an empty list would mean no device at all, at which llama.cpp has crashed
        params.devices = listed if chosen else ffi.NULL
        overrides = _overrides(placement.head)
        params.tensor_buft_overrides = overrides[0] if overrides else ffi.NULL
        native = ffi.new("struct llama_model_params *", params)
        ptr = make(os.fsencode(path), native, *more)
        lines = log.drain()
        lost = _lost(servers)
        if not ptr or lost:
            lib.llama_model_free(ptr)
            reason = f"RPC server {lost} was lost" if lost else log.reason(lines)
            raise ModelLoadError(f"{path.name}: llama.cpp cannot load it: {reason}")
        model = cls(ptr, lib.llama_model_free)
        model.path, model._servers = path, servers
        model._check_decoder()
        model.vocab = Vocab(model)
        model.n_embd = lib.llama_model_n_embd(ptr)
        model.n_layer = lib.llama_model_n_layer(ptr)
        model.n_ctx_train = lib.llama_model_n_ctx_train(ptr)
        return model

    def check_servers(self) -> None:
        """Raise DecodeError where a server that has part of the model is lost: what passes give
        since is not to be used.
        """
        if self._servers and (lost := _lost(self._servers)):
            raise DecodeError(
                f"{self.path.name}: the connection to the RPC server {lost} is lost, and with it "
                "the part of the model there; see why, and load the model again"
            )

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

    @property
    def sliding(self) -> bool:
        """Whether layers see a window of the text alone."""
        return bool(lib.llama_model_n_swa(self.ptr) > 0)


def _lost(servers: dict[str, int]) -> str | None:
    """The first of the servers of which more connections are lost than there had been."""
    return next((name for name, n in servers.items() if remote.losses(name) != n), None)


def _overrides(head: str | None) -> tuple[Any, ...]:
    """Where embedding and head are to be, for llama.cpp, and what has to live as long; () for
    wherever the layers are.
    """
    if head is None:
        return ()
    on_cpu = head == CPU
    buffers = (
        lib.ggml_backend_cpu_buffer_type()
        if on_cpu
        else lib.ggml_backend_dev_buffer_type(remote.pointer(head))
    )
    pattern = ffi.new("char[]", _TABLES)
    listed = ffi.new("struct llama_model_tensor_buft_override[2]", [(pattern, buffers)])
    return listed, pattern
