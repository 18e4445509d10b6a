"""Drafts and targets by name: what is here is used as it is, of the Hub only what is needed."""

from pathlib import Path

from llamaspec.convert.checkpoint import CONFIG, INDEX, read_config, shard_names
from llamaspec.convert.formats import deepseek4
from llamaspec.convert.recognise import MASK_EMBEDDING
from llamaspec.convert.target import EMBEDDINGS, HEADS
from llamaspec.errors import ModelLoadError
from llamaspec.hub import fetch_files, is_repository, resolve

_TOKENIZER = [
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.*",
    "vocab.json",
    "merges.txt",
]


def fetch_draft(reference: str, revision: str | None) -> tuple[Path, tuple[str, str] | None]:
    """A draft's folder or GGUF, and its (repository, commit) where it is the Hub's.

    Of a full checkpoint with an embedded draft only the shards that hold it are downloaded.

    Raises:
        ModelLoadError: it is neither here nor on the Hub.
    """
    if not is_repository(reference):
        path = resolve(reference)
        if not path.exists():
            raise ModelLoadError(f"{path}: there is no such folder or file")
        return path, None
    folder, repository, commit = fetch_files(reference, revision, [CONFIG, INDEX, MASK_EMBEDDING])
    embedded = deepseek4.marked(read_config(folder))
    fetch_files(reference, commit, _shards(folder, deepseek4.wanted if embedded else _all))
    return folder, (repository, commit)


def fetch_target(reference: str, revision: str | None, weights: bool) -> Path:
    """A target's GGUF, or its folder with configuration, tokenizer and (on wish) its tables."""
    if not is_repository(reference):
        return resolve(reference)
    patterns = [CONFIG, *_TOKENIZER, *([INDEX] if weights else [])]
    folder, _, commit = fetch_files(reference, revision, patterns)
    if weights:
        fetch_files(reference, commit, _shards(folder, lambda name: name in (*EMBEDDINGS, *HEADS)))
    return folder


def _all(_: str) -> bool:
    return True


def _shards(folder: Path, wanted: "deepseek4.Wanted") -> list[str]:
    return shard_names(folder, wanted) if (folder / INDEX).exists() else ["*.safetensors"]
