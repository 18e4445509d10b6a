"""What a file is, and every reason why a draft does not fit a target."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamaspec.errors import IncompatibleDraftError, ModelLoadError
from llamaspec.runtime.describe import (
    NO_LAYER_INPUT_ARCHITECTURES,
    RECURRENT_ARCHITECTURES,
    check_pair,
    check_target,
    describe,
    fits,
    pair_notes,
    pair_problems,
)
from llamaspec.runtime.description import OTHER_ARCHITECTURES, Selector
from tests.miniature import (
    BLOCK,
    RANK,
    VOCABULARY,
    WIDTH,
    ramp,
    write_draft,
    write_gguf,
    write_target,
)
from tests.miniature_targets import ROLLING


def test_the_trained_target(ggufs: Path) -> None:
    found = describe(ggufs / "tiny-target-q8_0.gguf")
    assert (found.kind, found.architecture, found.name) == ("target", "qwen3", "Tiny Target")
    assert (found.n_layer, found.width, found.n_vocab, found.context_length) == (
        10,
        256,
        4096,
        4096,
    )
    assert (found.quantisation, found.tokenizer) == ("Q8_0", "gpt2/qwen2")
    assert found.n_params == 8_919_552
    assert found.has_chat_template
    assert found.tied
    assert found.draft is None


@pytest.mark.parametrize(
    ("name", "layout", "block", "head", "rank", "vocabulary", "own"),
    [
        ("tiny-dspark-f32", "anchor-first", 7, "vanilla", 64, 4096, (True, False)),
        ("tiny-dspark-bf16", "anchor-first", 7, "vanilla", 64, 4096, (True, False)),
        ("tiny-dspark-speculators-f32", "bonus-anchor", 8, "vanilla", 64, 2048, (True, True)),
        ("tiny-dflash-f32", "bonus-anchor", 8, "none", 0, 4096, (False, False)),
    ],
)
def test_the_trained_drafts(
    ggufs: Path,
    name: str,
    layout: str,
    block: int,
    head: str,
    rank: int,
    vocabulary: int,
    own: tuple[bool, bool],
) -> None:
    target, found = describe(ggufs / "tiny-target-f32.gguf"), describe(ggufs / f"{name}.gguf")
    draft = found.draft
    assert found.kind == "draft"
    assert draft is not None
    assert (draft.layout, draft.block_size, draft.proposals) == (layout, block, 7)
    assert draft.first_row == block - 7
    assert (draft.head, draft.markov_rank, draft.draft_vocabulary) == (head, rank, vocabulary)
    assert (draft.own_embedding, draft.own_head) == own
    assert (draft.taps, draft.feature_width, draft.mask_token_id) == ((2, 5, 9), 768, 4095)
    assert draft.has_confidence_head == (head != "none")
    assert draft.target_vocabulary == 4096
    assert not draft.causal
    assert pair_problems(target, found) == []
    assert pair_notes(target, found) == []
    check_pair(target, found)


def test_layout_without_the_key(tmp_path: Path) -> None:
    key: dict[str, Any] = {"dflash.sample_from_anchor": None}
    plain = {"markov_w1.weight": None, "markov_w2.weight": None, "conf_proj.weight": None}
    cases = [(key, {}, 5), (key, plain, 4), ({}, plain, 5), ({**key, **_key(False)}, {}, 4)]
    for metadata, tensors, proposals in cases:
        draft = describe(write_draft(tmp_path / "d.gguf", metadata, tensors)).draft
        assert draft is not None
        assert draft.proposals == proposals
        assert draft.layout == ("anchor-first" if proposals == 5 else "bonus-anchor")


def _key(value: bool) -> dict[str, bool]:
    return {"dflash.sample_from_anchor": value}


def test_kinds_that_are_mixed_up(tmp_path: Path) -> None:
    target = describe(write_target(tmp_path / "target.gguf"))
    draft = describe(write_draft(tmp_path / "draft.gguf"))
    other = describe(write_target(tmp_path / "eagle.gguf", arch="eagle3"))
    check_target(target)
    check_pair(target, draft)
    with pytest.raises(ModelLoadError, match=r"draft\.gguf: is a DSpark draft .*32 and 64 tokens"):
        check_target(draft)
    with pytest.raises(ModelLoadError, match="not a model that generates"):
        check_target(other)
    with pytest.raises(ModelLoadError, match=r"target\.gguf: is a model by itself .*qwen3"):
        check_pair(target, target)
    with pytest.raises(ModelLoadError, match=r"eagle\.gguf: is no block draft .*eagle3"):
        check_pair(target, other)
    with pytest.raises(ModelLoadError, match="not standalone"):
        check_pair(draft, draft)


GATE, JOINT = ramp(RANK, WIDTH + RANK), ramp(3 * RANK, WIDTH + 2 * RANK)
SELECTOR = {
    "dflash.selector_top_k": 4,
    "dflash.selector_rank": RANK,
    "dflash.conv_kernel_size": 2,
    "dflash.conv_group_size": 16,
    "t:selector_predecessor.weight": ramp(VOCABULARY, RANK),
    "t:selector_successor.weight": ramp(VOCABULARY, RANK),
    "t:selector_hidden.weight": ramp(RANK, WIDTH),
    "t:blk.0.attn_conv_base": ramp(2, 2, WIDTH),
    "t:blk.0.attn_conv_proj.weight": ramp(8, WIDTH),
    "t:blk.0.ffn_conv_base": ramp(2, 2, WIDTH),
    "t:blk.0.ffn_conv_proj.weight": ramp(8, WIDTH),
}
MISFITS: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"qwen3.embedding_length": 48}, {}, ["width 64", "96 (2 layers x 48)"]),
    ({}, {"dflash.embedding_length": 16}, ["16 wide", "32"]),
    ({"qwen3.block_count": 2}, {}, ["layers [3]", "layers 0 to 1", "2 is what leaves the last"]),
    ({"qwen3.nextn_predict_layers": 2}, {}, ["layers [3]", "layers 0 to 1"]),
    ({}, {"dflash.target_layers": [-1, 1]}, ["layers [-1]", "layers 0 to 3"]),
    ({}, {"dflash.target_layers": None}, ["dflash.target_layers"]),
    ({"tokenizer.ggml.tokens": [str(i) for i in range(65)]}, {}, ["64 tokens", "has 65"]),
    ({"tokenizer.ggml.pre": "llama-bpe"}, {}, ["gpt2/qwen2", "gpt2/llama-bpe"]),
    ({}, {"tokenizer.ggml.mask_token_id": None}, ["mask_token_id"]),
    ({}, {"tokenizer.ggml.mask_token_id": -1}, ["mask_token_id"]),
    ({}, {"tokenizer.ggml.mask_token_id": 64}, ["mask token is 64", "64 tokens"]),
    ({}, {"dflash.block_size": None}, ["block of 0 slots"]),
    ({}, {"dflash.block_size": 1, "dflash.sample_from_anchor": False}, ["block of 1", "bonus"]),
    ({}, {"t:markov_w1.weight": ramp(63, RANK)}, ["markov_w1", "(63, 8)", "(64, 8)"]),
    ({}, {"t:markov_w2.weight": ramp(64, 7)}, ["markov_w2", "(64, 7)", "(64, 8)"]),
    ({}, {"t:markov_w2.weight": None}, ["markov_w2", "()", "(64, 8)"]),
    ({}, {"t:conf_proj.weight": ramp(1, 33)}, ["conf_proj", "(1, 33)", "(1, 40)"]),
    ({}, {"t:markov_w1.weight": None, "t:markov_w2.weight": None}, ["conf_proj", "no Markov"]),
    ({}, {"t:fc.weight": None}, ["width 0", "64"]),
    ({}, {"t:markov_gate.weight": GATE[:, :-1]}, ["markov_gate.weight", "(8, 39)", "(8, 40)"]),
    ({}, {"t:markov_gate.bias": GATE[:, 0]}, ["markov_gate.weight", "()", "(8, 40)"]),
    ({}, {"t:markov_joint.weight": JOINT.T}, ["markov_joint.weight", "(48, 24)", "(24, 48)"]),
    (
        {},
        {"t:markov_joint.weight": JOINT, "t:markov_joint.bias": ramp(23)},
        ["markov_joint.bias", "(23,)", "(24,)"],
    ),
    ({}, {"t:markov_gate.weight": GATE, "t:markov_joint.weight": JOINT}, ["gated", "markov_joint"]),
    ({}, SELECTOR | {"dflash.selector_top_k": None}, ["0 candidates"]),
    ({}, SELECTOR | {"dflash.conv_group_size": 0}, ["groups of 0"]),
    ({}, SELECTOR | {"dflash.conv_group_size": 5}, ["groups of 5", "32"]),
    ({}, SELECTOR | {"dflash.selector_top_k": 6}, ["6 candidates", "42 elements", "32 wide"]),
    ({}, SELECTOR | {"dflash.selector_rank": 9}, ["selector_hidden", "(8, 32)", "(9, 32)"]),
    ({}, SELECTOR | {"t:selector_successor.weight": None}, ["selector_successor", "(64, 8)"]),
    ({}, SELECTOR | {"t:blk.0.ffn_conv_base": None}, ["blk.0.ffn_conv_base", "(2, 2, 32)"]),
    ({}, SELECTOR, ["a selector and also", "markov_w1.weight", "of another head"]),
    ({}, {"dflash.selector_top_k": 4}, ["selector of 4 candidates and rank 0"]),
]


@pytest.mark.parametrize(("target_changes", "draft_changes", "words"), MISFITS)
def test_misfits(
    tmp_path: Path, target_changes: dict[str, Any], draft_changes: dict[str, Any], words: list[str]
) -> None:
    tensors = {key[2:]: value for key, value in draft_changes.items() if key.startswith("t:")}
    metadata = {key: value for key, value in draft_changes.items() if not key.startswith("t:")}
    target = write_target(tmp_path / "target.gguf", target_changes)
    draft = write_draft(tmp_path / "draft.gguf", metadata, tensors)
    problems = fits(target, draft)
    assert any(all(word in problem for word in words) for problem in problems), problems
    with pytest.raises(IncompatibleDraftError) as caught:
        check_pair(describe(target), describe(draft))
    assert str(caught.value).startswith(problems[0])
    assert "\n" not in str(caught.value)
    more = f"and {len(problems) - 1} more"
    assert (more in str(caught.value)) == (len(problems) > 1)


def test_a_reduced_vocabulary(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf")
    ids = np.arange(16, dtype=np.int64) * 4
    parts = {"d2t": ids, "markov_w2.weight": ramp(16, RANK), "output.weight": ramp(16, WIDTH)}
    path = tmp_path / "draft.gguf"
    assert fits(target, write_draft(path, {}, parts)) == []
    for kind in (np.int8, np.int16, np.int32, np.float32):
        with pytest.raises(ModelLoadError, match=r"d2t has type [FI]\d+, llama.cpp takes I64"):
            describe(write_draft(path, {}, parts | {"d2t": ids.astype(kind)}))
    (problem,) = fits(target, write_draft(path, {}, parts | {"d2t": ids + 4}))
    assert "4 to 64" in problem
    (problem,) = fits(target, write_draft(path, {}, parts | {"output.weight": None}))
    assert "16 tokens" in problem
    (problem,) = fits(target, write_draft(path, {}, parts | {"markov_w2.weight": ramp(64, RANK)}))
    assert "(16, 8)" in problem


@pytest.mark.parametrize(
    ("kind", "tensor", "weight"), [("gated", "markov_gate", GATE), ("rnn", "markov_joint", JOINT)]
)
def test_other_markov_heads(
    tmp_path: Path, kind: str, tensor: str, weight: np.ndarray[Any, np.dtype[np.float32]]
) -> None:
    target, path = write_target(tmp_path / "target.gguf"), tmp_path / "draft.gguf"
    parts = {f"{tensor}.weight": weight, f"{tensor}.bias": ramp(len(weight))}
    assert fits(target, write_draft(path, {"dflash.markov_head_type": kind}, parts)) == []
    found = describe(write_draft(path, {}, {f"{tensor}.weight": weight})).draft
    assert found is not None
    assert (found.head, found.markov_rank, found.method) == (kind, RANK, "DSpark")
    assert fits(target, path) == []
    path = write_draft(tmp_path / "odd.gguf", {"dflash.markov_head_type": kind})
    with pytest.raises(ModelLoadError, match=f"'{kind}'.*vanilla"):
        describe(path)


def test_a_selector(tmp_path: Path) -> None:
    tensors = {key[2:]: value for key, value in SELECTOR.items() if key.startswith("t:")}
    metadata = {key: value for key, value in SELECTOR.items() if not key.startswith("t:")}
    bare = dict.fromkeys(("markov_w1.weight", "markov_w2.weight", "conf_proj.weight"))
    path = write_draft(tmp_path / "draft.gguf", metadata, tensors | bare)
    assert fits(write_target(tmp_path / "target.gguf"), path) == []
    found = describe(path).draft
    assert found is not None
    assert found.selector == Selector(top_k=4, rank=RANK, kernel=2, group=16)
    assert (found.method, found.first_row, found.proposals) == ("DFlash2", 1, BLOCK - 1)


@pytest.mark.parametrize("name", ["conf_proj.bias", "output_norm.weight", "blk.0.attn_conv_base"])
def test_what_is_added_to_rows_must_be_f32(tmp_path: Path, name: str) -> None:
    path = write_draft(tmp_path / "draft.gguf", {}, {name: np.ones(WIDTH, np.float16)})
    with pytest.raises(ModelLoadError, match=rf"{name} has type F16, .* takes F32"):
        describe(path)


def test_architectures_that_a_draft_cannot_use(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft.gguf")
    for arch in ("gemma3n", "hy_v4"):
        (problem,) = fits(write_target(tmp_path / "t.gguf", arch=arch), draft)
        assert f"{arch} has no layer inputs" in problem
    last = write_draft(tmp_path / "last.gguf", {"dflash.target_layers": [0, 4]})
    beyond = write_draft(tmp_path / "beyond.gguf", {"dflash.target_layers": [1, 5]})
    for arch in ("gemma3", "mimo2", "llama", "not-yet-known"):
        target = write_target(tmp_path / "t.gguf", arch=arch)
        assert fits(target, last) == []
        (problem,) = fits(target, beyond)
        assert "[5]" in problem


@pytest.mark.parametrize("arch", sorted(RECURRENT_ARCHITECTURES))
def test_recurrent_state_is_a_reason(tmp_path: Path, arch: str) -> None:
    target = describe(write_target(tmp_path / "t.gguf", arch=arch))
    draft = describe(write_draft(tmp_path / "draft.gguf"))
    problems = pair_problems(target, draft)
    assert [f"{arch} keeps recurrent state" in problem for problem in problems][-1]
    assert len(problems) == 1 + (arch in NO_LAYER_INPUT_ARCHITECTURES)
    with pytest.raises(IncompatibleDraftError, match=re.escape(problems[0])):
        check_pair(target, draft)
    check_target(target)


@pytest.mark.parametrize("arch", sorted(OTHER_ARCHITECTURES))
def test_architectures_that_do_not_continue_text(tmp_path: Path, arch: str) -> None:
    found = describe(write_target(tmp_path / "t.gguf", arch=arch))
    assert found.kind == "other"
    words = "an encoder with a decoder" if arch == "t5" else "not a model that generates text"
    with pytest.raises(ModelLoadError, match=f"is a {arch} .*{words}"):
        check_target(found)


def test_attention_that_is_not_causal(tmp_path: Path) -> None:
    for causal in (True, False):
        path = write_target(tmp_path / "t.gguf", {"qwen3.attention.causal": causal})
        assert describe(path).kind == ("target" if causal else "other")


MIXTURE = {"qwen3.expert_count": 8, "qwen3.expert_used_count": 2}


def test_mixtures_of_experts(tmp_path: Path) -> None:
    groups = {"qwen3.expert_group_count": 4, "qwen3.expert_group_used_count": 2}
    for changes in (MIXTURE, MIXTURE | groups, MIXTURE | {"qwen3.expert_group_count": 1}):
        assert describe(write_target(tmp_path / "t.gguf", changes)).kind == "target"
    one = {"hunyuan-dense.expert_count": 1}
    assert describe(write_target(tmp_path / "t.gguf", one, arch="hunyuan-dense")).n_layer == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qwen3.block_count": "many"}, "'many', not an integer"),
        ({"qwen3.block_count": None}, "0 layers"),
        ({"qwen3.block_count": 513}, "513 layers"),
        ({"qwen3.embedding_length": None}, "embedding_length"),
        ({"qwen3.expert_count": 5000}, "5000 experts"),
        (MIXTURE | {"qwen3.expert_group_count": 8}, "0 of 8 groups of its 8"),
        (MIXTURE | {"qwen3.expert_group_count": 4}, "0 of 4 groups of its 8"),
        ({"qwen3.expert_count": 8}, "uses 0 of its 8 experts"),
        ({"qwen3.expert_used_count": 2}, "uses 2 of its 0 experts"),
        ({"qwen3.expert_count": 2, "qwen3.expert_used_count": [2, 3]}, "uses 3 of its 2 experts"),
        (
            {"qwen3.expert_count": 8, "qwen3.expert_used_count": 2, "qwen3.expert_group_count": 3},
            "uses 0 of 3 groups of its 8 experts",
        ),
        ({"qwen3.rope.scaling.type": "magic"}, "'magic'"),
        ({"qwen3.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon is nan"),
        ({"qwen3.attention.layer_norm_epsilon": -1e-6}, "at least 0"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, "tokens 0 and 2 of its vocabulary"),
        ({"tokenizer.ggml.tokens": ["a\0b", "a\0c"]}, "are both 'a'"),
        ({"tokenizer.ggml.tokens": ["[EMPTY_1]", ""]}, "tokens 0 and 1"),
        ({"general.name": 5}, "5, not a string"),
    ],
)
def test_values_that_llama_cpp_would_abort_on(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelLoadError, match=re.escape(words)):
        describe(write_target(tmp_path / "t.gguf", changes))
    with pytest.raises(ModelLoadError, match="true or false"):
        describe(write_draft(tmp_path / "d.gguf", {"dflash.sample_from_anchor": 1}))
    with pytest.raises(ModelLoadError, match="integers"):
        describe(write_draft(tmp_path / "d.gguf", {"dflash.target_layers": ["a"]}))
    with pytest.raises(ModelLoadError, match="block of 100000 slots"):
        describe(write_draft(tmp_path / "d.gguf", {"dflash.block_size": 100_000}))


def test_notes(tmp_path: Path) -> None:
    sections = {"qwen35.rope.dimension_sections": [1, 1, 1, 0], "qwen35.context_length": 4096}
    untied = {"output.weight": ramp(VOCABULARY, WIDTH)}
    target = describe(write_target(tmp_path / "t.gguf", sections, untied, arch="qwen35"))
    own = {"token_embd.weight": ramp(VOCABULARY, WIDTH)}
    draft = describe(write_draft(tmp_path / "d.gguf", {}, own))
    notes = pair_notes(target, draft)
    assert len(notes) == 3
    for note, word in zip(notes, ("both or neither", "M-RoPE", "128 positions"), strict=True):
        assert word in note


def test_files_without_weights_or_text(tmp_path: Path) -> None:
    vocabulary = describe(write_gguf(tmp_path / "v.gguf", "llama", {}, {}))
    assert vocabulary.kind == "other"
    adapter = write_target(tmp_path / "a.gguf", {"general.type": "adapter"})
    assert describe(adapter).kind == "other"
    assert fits(tmp_path / "absent.gguf", adapter) == [
        f"{tmp_path / 'absent.gguf'}: there is no such file"
    ]


def publishing_classes(models: Path, needle: str, *, inherited: bool = False) -> set[str]:
    """Model classes whose graph, their own, another's that they name or their base's, contains a
    text.
    """
    owners = set()
    for path in models.glob("*.cpp"):
        source = path.read_text()
        if needle in source:
            owners |= set(re.findall(r"llama_model_(\w+)::graph(?:<\w+>)?::graph\(", source))
    blocks = re.split(r"^struct llama_model_", (models / "models.h").read_text(), flags=re.M)[1:]
    aliases = {
        match[0]: re.findall(r"using graph = llama_model_(\w+)::graph", block)
        for block in blocks
        if (match := re.match(r"\w+", block))
    }
    if inherited:
        for block in blocks:
            if "graph(" not in block and (
                match := re.match(r"(\w+) : public llama_model_(\w+)", block)
            ):
                aliases[match[1]].append(match[2])
    return owners | {name for name, used in aliases.items() if owners & set(used)}


def architectures(tree: Path, classes: set[str]) -> set[str]:
    model, arch = (tree / "src" / f"llama-{part}.cpp" for part in ("model", "arch"))
    case = r"case (LLM_ARCH_\w+):\s+return new llama_model_(\w+)\("
    enums = {enum for enum, name in re.findall(case, model.read_text()) if name in classes}
    names = dict(re.findall(r"\{ (LLM_ARCH_\w+),\s+\"([^\"]+)\"", arch.read_text()))
    return {names[enum] for enum in enums}


def test_the_lists_are_those_of_the_sources(llama_cpp_tree: Path) -> None:
    models = llama_cpp_tree / "src" / "models"
    # streams of hyper-connections, and of gemma3n, that the graph does not merge for drafts
    streams = {"gemma3n"} | architectures(llama_cpp_tree, publishing_classes(models, '"hc_init"'))
    streams |= architectures(llama_cpp_tree, publishing_classes(models, "res_hc"))
    streams |= architectures(llama_cpp_tree, publishing_classes(models, "= res_mix("))
    merged = architectures(llama_cpp_tree, publishing_classes(models, "t_layer_inp[n_layer]"))
    named = publishing_classes(models, '"l_out"', inherited=True)
    named |= publishing_classes(models, "t_layer_inp[il]", inherited=True)
    case = r"case LLM_ARCH_\w+:\s+return new llama_model_(\w+)\("
    every = set(re.findall(case, (llama_cpp_tree / "src" / "llama-model.cpp").read_text()))
    nameless = architectures(llama_cpp_tree, every - named) - OTHER_ARCHITECTURES
    assert (streams - merged - {"dflash"}) | nameless == NO_LAYER_INPUT_ARCHITECTURES
    recurrent = listed(llama_cpp_tree, "arch", "bool llm_arch_is_recurrent(", "return true")
    hybrid = listed(llama_cpp_tree, "arch", "bool llm_arch_is_hybrid(", "return true")
    snapshots = listed(llama_cpp_tree, "arch", "bool llm_arch_supports_rs_rollback(", "return true")
    assert snapshots <= recurrent | hybrid
    assert (recurrent | hybrid) - snapshots == RECURRENT_ARCHITECTURES
    # a miniature of each is decoded with a draft
    assert snapshots == ROLLING


def listed(tree: Path, part: str, after: str, before: str) -> set[str]:
    """The architectures that a switch names between two texts."""
    names = dict(
        re.findall(
            r"\{ (LLM_ARCH_\w+),\s+\"([^\"]+)\"", (tree / "src" / "llama-arch.cpp").read_text()
        )
    )
    body = (tree / "src" / f"llama-{part}.cpp").read_text().split(after)[1].split(before)[0]
    return {names[enum] for enum in re.findall(r"case (LLM_ARCH_\w+):", body)}


def test_what_does_not_continue_text_is_told_from_the_sources(llama_cpp_tree: Path) -> None:
    speaking = publishing_classes(llama_cpp_tree / "src" / "models", "t_logits", inherited=True)
    case = r"case LLM_ARCH_\w+:\s+return new llama_model_(\w+)\("
    every = set(re.findall(case, (llama_cpp_tree / "src" / "llama-model.cpp").read_text()))
    silent = architectures(llama_cpp_tree, every - speaking)
    encoding = listed(llama_cpp_tree, "model", "bool llama_model_has_encoder(", "return true")
    forgetful = listed(llama_cpp_tree, "model", "::create_memory(", "res = nullptr")
    # and one whose base has logits, one that needs another context than ours
    others = {"llama-embed", "gemma4-assistant"}
    assert silent | encoding - {"dflash"} | forgetful | others == OTHER_ARCHITECTURES


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (
            {"dflash.attention.key_length": 8, "dflash.attention.value_length": 16},
            "keys of width 8 but values of 16",
        ),
        ({"dflash.hyper_connection.count": 4}, "attention.output_group_count is missing or zero"),
        (
            {"dflash.hyper_connection.count": 4, "dflash.attention.output_group_count": 2},
            "attention.sliding_window is missing or zero",
        ),
    ],
)
def test_drafts_that_llama_cpp_asserts_on(
    tmp_path: Path, metadata: dict[str, int], said: str
) -> None:
    draft = write_draft(tmp_path / "draft.gguf", metadata)
    with pytest.raises(ModelLoadError, match=said):
        describe(draft)
