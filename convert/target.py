"""What a conversion needs to know of the target: sizes, tokenizer, and its tables if at hand."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFValueType as Type

from llamaspec.convert.checkpoint import CONFIG, Checkpoint, read_config
from llamaspec.convert.keys import Value, typed
from llamaspec.convert.settings import Settings, first_architecture
from llamaspec.convert.tokenizer import read_tokenizer
from llamaspec.convert.weights import Weights, floats
from llamaspec.errors import ModelLoadError, OptionError
from llamaspec.runtime.describe import check_target
from llamaspec.runtime.description import read_description
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.gguf_types import MetaArray, MetaValue

Floats = npt.NDArray[np.float32]
EMBEDDINGS = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "embed.weight",
)
HEADS = ("lm_head.weight", "model.lm_head.weight", "head.weight")
# transformers' model_type and llama.cpp's name, of the targets that published drafts are for and of
# one that no draft can read
_ARCHITECTURES = {
    "deepseek_v4": "deepseek4",
    "gemma3n": "gemma3n",
    "gemma3n_text": "gemma3n",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "gemma4_unified": "gemma4",
    "gpt_oss": "gpt-oss",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "llama": "llama",
    "nanbeige": "nanbeige",
    "nemotron_h": "nemotron_h",
    "qwen3": "qwen3",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_5_text": "qwen35",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
}

_DRAFT = re.compile("DFlash|DSpark")


@dataclass(frozen=True)
class Table:
    """An embedding or head, [vocabulary, width].

    `exact` is False where the values were quantised.
    """

    shape: tuple[int, ...]
    rows: Callable[[int, int], Floats]
    exact: bool
    weights: Weights | None = None


@dataclass(frozen=True)
class Target:
    """A target as a conversion sees it.

    Attributes:
        path: file or folder.
        architecture: llama.cpp's name, "" where it is not known.
        width, layers, vocabulary: sizes.
        mrope: positions are multi-dimensional.
        tokenizer: GGUF keys and values.
        embedding, head: its tables where its weights are at hand; a tied head is the embedding.
    """

    path: Path
    architecture: str
    width: int
    layers: int
    vocabulary: int
    mrope: bool
    tokenizer: Mapping[str, Value]
    embedding: Table | None = None
    head: Table | None = None


def read_target(path: Path) -> Target:
    """A target from a GGUF, or from a checkpoint folder whose weights may be absent.

    Raises:
        ModelLoadError: neither, or without a usable tokenizer.
    """
    if path.is_dir():
        return _from_folder(path)
    if path.suffix in (".safetensors", ".json"):
        raise OptionError(f"{path}: give the folder of the target, not one file of it")
    return _from_gguf(path)


def _from_gguf(path: Path) -> Target:
    with GGUFFile.open(path) as file:
        found = read_description(file)
        check_target(found)
        tokenizer = {
            key: _copied(key, value)
            for key, value in file.metadata.items()
            if key.startswith("tokenizer.") and key != "tokenizer.ggml.mask_token_id"
        }
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, MetaArray) or not all(type(text) is str for text in tokens):
            raise ModelLoadError(f"{path}: has no tokens, and a draft needs the target's")
        names = set(file.tensors)
    embedding = _stored(path, "token_embd.weight", names)
    return Target(
        path=path,
        architecture=found.architecture,
        width=found.width,
        layers=found.n_layer,
        vocabulary=found.n_vocab,
        mrope=found.mrope,
        tokenizer=tokenizer,
        embedding=embedding,
        head=_stored(path, "output.weight", names) or embedding,
    )


def _copied(key: str, value: MetaValue) -> Value:
    if not isinstance(value, MetaArray):
        return typed(value) if not _negative(value) else Value(value, Type.INT32)
    items = value.tolist()
    if key == "tokenizer.ggml.precompiled_charsmap":
        return Value(items, Type.ARRAY, Type.UINT8)
    kinds = {bool: Type.BOOL, int: Type.INT32, float: Type.FLOAT32, str: Type.STRING}
    return Value(items, Type.ARRAY, kinds[type(items[0])] if items else Type.STRING)


def _negative(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value < 0


def _stored(path: Path, name: str, names: set[str]) -> Table | None:
    if name not in names:
        return None
    file = GGUFFile.open(path)  # unmapped with the last table
    info = file.tensors[name]
    exact = info.type in ("F32", "F16", "BF16")
    return Table(info.shape, lambda start, stop: file.rows(name, start, stop), exact)


def _from_folder(folder: Path) -> Target:
    config = read_config(folder)
    settings = Settings(folder / CONFIG, _flat(config))
    if _DRAFT.search(first_architecture(config)):
        raise ModelLoadError(f"{folder}: is a draft ({first_architecture(config)}), not a target")
    vocabulary = settings.whole("vocab_size")
    embedding, head = _tables(folder, _tied(settings))
    return Target(
        path=folder,
        architecture=_ARCHITECTURES.get(settings.text("model_type") or "", ""),
        width=settings.whole("hidden_size"),
        layers=settings.whole("num_hidden_layers"),
        vocabulary=vocabulary,
        mrope="mrope_section" in settings.rope(),
        tokenizer={key: typed(value) for key, value in read_tokenizer(folder, vocabulary).items()},
        embedding=embedding,
        head=head,
    )


def _tied(settings: Settings) -> bool:
    """Whether a head that is not there is the embedding: unless the configuration says otherwise,
    as many leave it to their class.
    """
    stated = settings.flag("tie_word_embeddings")
    return (settings.flag("tie_embedding") if stated is None else stated) is not False


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """A multimodal target's text model is the one that counts."""
    text = config.get("text_config")
    return {**config, **text, "text_config": None} if isinstance(text, dict) else config


def _tables(folder: Path, tied: bool) -> tuple[Table | None, Table | None]:
    if not any(folder.glob("*.safetensors")):
        return None, None
    try:
        source = Checkpoint.open(folder, wanted=lambda name: name in (*EMBEDDINGS, *HEADS))
    except ModelLoadError:
        return None, None  # its configuration and tokenizer are enough
    embedding, head = (
        next((_table(source, name) for name in names if name in source), None)
        for names in (EMBEDDINGS, HEADS)
    )
    return embedding, embedding if head is None and tied else head


def _table(source: Checkpoint, name: str) -> Table | None:
    entry = source.entry(name)
    if entry.dtype not in ("F32", "F16", "BF16") or len(entry.shape) != 2:
        return None
    weights = source.weights(name)
    return Table(entry.shape, lambda a, b: floats(weights.rows(a, b)), True, weights)
