"""Values on which llama.cpp's loader ends the process instead of reporting an error."""

from pathlib import Path

from llamaspec.errors import ModelLoadError
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.gguf_types import MetaArray
from llamaspec.runtime.metadata import MAX_LAYERS, Keys

_MAX_EXPERTS = 1024
_MAX_BLOCK = 1024
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
# what a draft's graph adds to rows or multiplies them by, element by element
_ADDED = ("norm.weight", ".bias", "_conv_base", "_sinks.weight", "layer_output_scale.weight")
# llama.cpp takes a single expert of theirs for none
_DENSE_IF_ONE_EXPERT = frozenset({"hunyuan-dense", "hunyuan_vl"})


def running_layers(keys: Keys, arch: str) -> int:
    """Layers that a pass runs: loops unrolled, next-token-prediction layers left out."""
    once = keys.integer(f"{arch}.block_count") - keys.integer(f"{arch}.nextn_predict_layers")
    return once * keys.integer(f"{arch}.num_loops", 1)


def check_loader_limits(file: GGUFFile, keys: Keys) -> None:
    """Raise ModelLoadError for a value that llama.cpp asserts on, or allocates by, as it loads."""
    path, arch = file.path, file.architecture
    layers, experts = running_layers(keys, arch), keys.integer(f"{arch}.expert_count")
    block = keys.integer("dflash.block_size")
    if not 0 <= block <= _MAX_BLOCK:
        raise ModelLoadError(f"{path}: has a block of {block} slots, more than {_MAX_BLOCK}")
    if not 0 < layers <= MAX_LAYERS:
        raise ModelLoadError(f"{path}: has {layers} layers, llama.cpp takes 1 to {MAX_LAYERS}")
    if keys.integer(f"{arch}.embedding_length") <= 0:
        raise ModelLoadError(f"{path}: {arch}.embedding_length is missing or zero")
    if not 0 <= experts <= _MAX_EXPERTS:
        raise ModelLoadError(f"{path}: has {experts} experts, llama.cpp takes {_MAX_EXPERTS}")
    scaling = keys.text(f"{arch}.rope.scaling.type", "linear")
    if scaling not in _ROPE_SCALINGS:
        known = ", ".join(_ROPE_SCALINGS)
        raise ModelLoadError(f"{path}: rope scaling type {scaling!r} is none of {known}")
    for key in (f"{arch}.attention.layer_norm_rms_epsilon", f"{arch}.attention.layer_norm_epsilon"):
        epsilon = keys.number(key)
        if not epsilon >= 0:  # nor is a NaN
            raise ModelLoadError(f"{path}: {key} is {epsilon}, it must be at least 0")
    if arch == "dflash":
        _check_draft(file, keys)
    if experts > 1 or arch not in _DENSE_IF_ONE_EXPERT:
        _check_experts(path, keys, arch, experts)
    _check_tokens(file)


def _check_draft(file: GGUFFile, keys: Keys) -> None:
    path = file.path
    for name, info in file.tensors.items():
        if name.endswith(_ADDED) and info.type != "F32":
            raise ModelLoadError(
                f"{path}: {name} has type {info.type}, llama.cpp's draft graph takes F32 there; "
                "convert the draft again"
            )
    key = keys.integer("dflash.attention.key_length")
    value = keys.integer("dflash.attention.value_length", key)
    if key and value != key:
        raise ModelLoadError(f"{path}: keys of width {key} but values of {value} in a draft")
    if keys.integer("dflash.hyper_connection.count") > 0:
        for name in ("attention.output_group_count", "attention.sliding_window"):
            if keys.integer(f"dflash.{name}") <= 0:
                raise ModelLoadError(f"{path}: dflash.{name} is missing or zero")


def _check_experts(path: Path, keys: Keys, arch: str, experts: int) -> None:
    used = keys.most(f"{arch}.expert_used_count")
    groups = keys.integer(f"{arch}.expert_group_count")
    groups_used = keys.integer(f"{arch}.expert_group_used_count")
    if not 0 <= used <= experts or (used == 0) != (experts == 0):
        raise ModelLoadError(f"{path}: uses {used} of its {experts} experts, which cannot be")
    split = groups > 1 and (experts % groups or not 0 < groups_used < groups)
    if groups and (not 0 < groups < experts or split):
        raise ModelLoadError(
            f"{path}: uses {groups_used} of {groups} groups of its {experts} experts, "
            "which cannot be"
        )


def _check_tokens(file: GGUFFile) -> None:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, MetaArray):
        return
    # as llama.cpp reads them: up to a NUL, and under a made-up name where nothing is left
    seen: dict[str, int] = {}
    for index, token in enumerate(tokens):
        word = str(token).partition("\0")[0] or f"[EMPTY_{index}]"
        if seen.setdefault(word, index) != index and "\ufffd" not in word:
            raise ModelLoadError(
                f"{file.path}: tokens {seen[word]} and {index} of its vocabulary "
                f"are both {word[:40]!r}"
            )
