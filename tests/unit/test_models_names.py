"""What a model's name says, which GGUF of several it means, and which known pair a target is."""

from pathlib import Path

import pytest

from llamaspec.errors import ModelLoadError, OptionError
from llamaspec.models.choose import (
    DRAFT_FIRST,
    TARGET_FIRST,
    choose,
    drafts,
    ggufs,
    quantisation,
    targets,
)
from llamaspec.models.known import drafts_for, known_pairs
from llamaspec.models.names import Named, read_name

FILES = [
    "README.md",
    "Qwen3-8B-Q4_K_M.gguf",
    "Qwen3-8B-Q8_0.gguf",
    "Qwen3-8B-BF16-00001-of-00002.gguf",
    "Qwen3-8B-BF16-00002-of-00002.gguf",
    "Qwen3-8B-DSpark-Q8_0.gguf",
    "mmproj-F16.gguf",
]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Qwen/Qwen3-8B-GGUF", Named("Qwen/Qwen3-8B-GGUF", None, "")),
        ("Qwen/Qwen3-8B-GGUF:Q4_K_M", Named("Qwen/Qwen3-8B-GGUF", None, "Q4_K_M")),
        ("hf://a/b@v1:sub/x.gguf", Named("a/b", "v1", "sub/x.gguf")),
        ("a/b@refs/pr/1", Named("a/b", "refs/pr/1", "")),
        ("a/b:x.gguf", Named("a/b", None, "x.gguf")),
    ],
)
def test_a_repository(text: str, named: Named) -> None:
    assert read_name(text) == named
    assert read_name(str(named)) == named


@pytest.mark.parametrize("text", ["x.gguf", "models/x.gguf", "/a/b", "../a/b", "one", "a/b/c"])
def test_a_path(text: str) -> None:
    assert read_name(text) == Path(text)


def test_what_is_here_comes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_name("ann/tiny") == Named("ann/tiny", None, "")
    Path("ann/tiny").mkdir(parents=True)
    assert read_name("ann/tiny") == Path("ann/tiny")
    assert read_name("hf://ann/tiny/x.gguf") == "hf://ann/tiny/x.gguf"


def test_an_unknown_form() -> None:
    with pytest.raises(OptionError, match="owner/repo"):
        read_name("hf://a/b/readme.md")


def test_what_is_a_target_and_what_a_draft() -> None:
    assert ggufs(FILES) == [
        "Qwen3-8B-BF16-00001-of-00002.gguf",
        "Qwen3-8B-DSpark-Q8_0.gguf",
        "Qwen3-8B-Q4_K_M.gguf",
        "Qwen3-8B-Q8_0.gguf",
        "mmproj-F16.gguf",
    ]
    assert drafts(FILES) == ["Qwen3-8B-DSpark-Q8_0.gguf"]
    assert not {"Qwen3-8B-DSpark-Q8_0.gguf", "mmproj-F16.gguf"} & set(targets(FILES))


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("model.q8_0.gguf", "Q8_0"),
        ("a_IQ4_XS.gguf", "IQ4_XS"),
        ("x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("BF16/x-BF16-00001-of-00003.gguf", "BF16"),
        ("gemma-3-mxfp4_moe.gguf", "MXFP4_MOE"),
        ("Qwen3-8B.gguf", ""),
    ],
)
def test_what_a_name_says_of_the_type(name: str, quant: str) -> None:
    assert quantisation(name) == quant


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("Q8_0", "Qwen3-8B-Q8_0.gguf"),
        ("q8_0", "Qwen3-8B-Q8_0.gguf"),
        ("BF16", "Qwen3-8B-BF16-00001-of-00002.gguf"),
        ("Qwen3-8B-Q8_0.gguf", "Qwen3-8B-Q8_0.gguf"),
        ("", "Qwen3-8B-Q4_K_M.gguf"),
    ],
)
def test_the_file_that_is_meant(wanted: str, file: str) -> None:
    assert choose("a/b", targets(FILES), wanted, TARGET_FIRST) == file


def test_the_only_file_needs_no_name() -> None:
    assert choose("a/b", ["x-IQ2_M.gguf"], "", TARGET_FIRST) == "x-IQ2_M.gguf"
    assert choose("a/b", ["d-F16.gguf", "d-Q8_0.gguf"], "", DRAFT_FIRST) == "d-Q8_0.gguf"


@pytest.mark.parametrize(
    ("names", "wanted", "said"),
    [
        (["x-Q4_0.gguf", "x-Q8_0.gguf"], "Q5_K_M", "no GGUF of Q5_K_M; it has Q4_0, Q8_0"),
        (["x-Q4_0.gguf", "x-Q8_0.gguf"], "", "has 2 GGUFs; name one after a colon: Q4_0, Q8_0"),
        (["x-Q4_0.gguf", "y-Q4_0.gguf"], "Q4_0", "can be 2 files.*: x-Q4_0.gguf, y-Q4_0.gguf"),
        (["x-Q4_K_M.gguf", "x-Q4_K_S.gguf"], "Q4_K", "no GGUF of Q4_K; it has Q4_K_M, Q4_K_S"),
        ([], "", "has no GGUF"),
    ],
)
def test_what_cannot_be_told_lists_what_there_is(names: list[str], wanted: str, said: str) -> None:
    with pytest.raises(ModelLoadError, match=said):
        choose("a/b", names, wanted, TARGET_FIRST)


def test_every_known_pair_says_where_it_is_from_and_on_what_terms() -> None:
    pairs = known_pairs()
    assert len({pair.draft for pair in pairs}) == len(pairs) > 10
    for pair in pairs:
        assert isinstance(read_name(pair.draft), Named)
        assert isinstance(read_name(pair.target), Named)
        assert pair.source
        assert pair.licence
        assert pair.kind in ("DSpark", "DFlash", "DFlash2")
        assert pair.means(pair.target)


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-8B-GGUF", "bartowski/Qwen_Qwen3-8B-GGUF", "qwen3-8b-q4_k_m", "Qwen3 8B"]
)
def test_a_target_is_known_by_its_names(name: str) -> None:
    found = [pair.draft for pair in drafts_for([name])]
    assert found[0] == "deepseek-ai/dspark_qwen3_8b_block7"
    assert "z-lab/Qwen3-8B-DFlash-b16" in found


@pytest.mark.parametrize("name", ["Qwen3-8B-Base", "Qwen3-4B-Instruct-2507", "My-Qwen3-8B-tune"])
def test_what_only_resembles_a_target_is_not_it(name: str) -> None:
    assert drafts_for([name]) == []
