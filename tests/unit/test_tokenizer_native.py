"""llama.cpp gives a text the ids that the tokenizer's own library gives it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from gguf import GGUFValueType

from llamaspec import demo
from llamaspec.convert.tokenizer import TokenizerValue, read_tokenizer
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.model import Model
from tests.rewrite import As, rewrite
from tests.unit.test_tokenizer import kind_folder, recorded, spaced_folder

pytestmark = pytest.mark.native


def ids_of(folder: Path, texts: list[str]) -> list[list[int]]:
    """Tokenise with the demonstration's target under the folder's tokenizer."""
    old = GGUFFile.open(demo.target_path()).metadata
    size = len(old["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    new: Mapping[str, TokenizerValue] = read_tokenizer(folder, size)
    changes: dict[str, object] = {key: None for key in old if key.startswith("tokenizer.")}
    for key, value in new.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        changes[key] = As(value, GGUFValueType.UINT32) if whole else value
    path = rewrite(demo.target_path(), folder / "target.gguf", changes)
    model = Model.load(path)
    try:
        return [model.vocab.tokenize(text, add_special=False).tolist() for text in texts]
    finally:
        model.close()
        path.unlink()


def differing(found: list[list[int]], wanted: list[list[int]]) -> list[int]:
    return [i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b]


@pytest.mark.parametrize("kind", sorted(recorded()["kinds"]))
def test_byte_level_as_tokenizers_has_it(kind: str, tmp_path: Path) -> None:
    case = recorded()["kinds"][kind]
    found = ids_of(kind_folder(tmp_path, kind), recorded()["texts"])
    # some of llama.cpp's own expressions leave out marks or wide spaces
    assert differing(found, case["ids"]) == case["llama_cpp_differs"]


@pytest.mark.parametrize("name", ["llama", "gemma", "llama_json", "gemma_json"])
def test_spaced_as_sentencepiece_or_tokenizers_has_it(name: str, tmp_path: Path) -> None:
    case = recorded()["spaced"][name]
    found = ids_of(spaced_folder(tmp_path, name), recorded()["texts"])
    # sentencepiece alone does not know of tokenizer_config.json's tokens
    assert differing(found, case["ids"]) == case["unknown_to_it"]
