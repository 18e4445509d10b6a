"""The reference against the published implementation's rollouts, and its parts against what must
hold of them.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llamaspec.errors import ModelLoadError
from tests.reference import Draft, load, quantised
from tests.reference.backbone import DenseBackbone
from tests.reference.checkpoint import Checkpoint, FloatArray
from tests.reference.heads import MarkovHead, PlainHead, SelectorHead
from tests.reference.layers import Convolution, Memory, Sight, attend
from tests.reference.rope import Rope, make_rope
from tests.reference.target import Target, load_target

NAMES = ["dspark", "dflash", "dspark-speculators", "dspark-gated", "dspark-rnn"]
# the oracles state margins with four decimals and confidences with six
MARGIN_TOLERANCE, CONFIDENCE_TOLERANCE, TIE = 1e-3, 1e-4, 1e-3
HEAD, LONGEST, THETA = 16, 512, 1e4
RNG = np.random.default_rng(5)
Stored = tuple[str, npt.NDArray[Any]]


def oracle(shared: Path, name: str) -> list[dict[str, Any]]:
    path = shared / "oracles" / f"oracle-tiny-{name}.public.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def text(line: dict[str, Any]) -> list[int]:
    ids: list[int] = line["prompt_token_ids"] + line["output_token_ids"]
    return ids


@pytest.fixture(scope="module")
def target(shared: Path) -> Target:
    return load_target(shared / "models" / "tiny-target")


@pytest.fixture(scope="module")
def inputs(shared: Path, target: Target) -> dict[str, list[FloatArray]]:
    """Layer inputs of prompt and output, by prompt; the outputs are the target's, so all the same
    for every draft.
    """
    lines = oracle(shared, NAMES[0])
    return {line["prompt_text"]: target.layer_inputs(text(line)) for line in lines}


def test_the_target_continues_as_it_did(
    shared: Path, target: Target, inputs: dict[str, list[FloatArray]]
) -> None:
    for line in oracle(shared, NAMES[0]):
        last = inputs[line["prompt_text"]][-1]
        output, start = line["output_token_ids"], len(line["prompt_token_ids"]) - 1
        logits = target.output(last[start : start + len(output)])
        assert logits.argmax(axis=1).tolist() == output
        top = np.sort(logits, axis=1)
        assert (top[:, -1] - top[:, -2]).min() == pytest.approx(
            line["target_margin_min"], abs=MARGIN_TOLERANCE
        )


@pytest.mark.parametrize("name", NAMES)
def test_every_round_proposes_what_the_published_code_proposed(
    shared: Path, inputs: dict[str, list[FloatArray]], name: str
) -> None:
    draft = load(shared / "models" / f"tiny-{name}", shared / "models" / "tiny-target")
    compared = 0
    for line in oracle(shared, name):
        features = [inputs[line["prompt_text"]][tap] for tap in draft.taps]
        context = draft.context(np.concatenate(features, axis=1))
        written = len(text(line))
        for known in line["rounds"]:
            # the last rounds may begin past the text that was kept
            if known["start"] <= written:
                compared += check_round(draft, context, known)
    assert compared > 1000


def check_round(draft: Draft, context: list[Memory], known: dict[str, Any]) -> int:
    """Compare until the first tie that falls the other way; return how many were compared."""
    block = draft.block(context, known["anchor"], known["start"], draft.block_size)
    assert len(block.ids) == len(known["draft"])
    assert (block.confidence is None) == (known["confidence"] is None)
    top = np.sort(block.logits, axis=1)
    margins = top[:, -1] - top[:, -2]
    for i, (found, expected) in enumerate(zip(block.ids, known["draft"], strict=True)):
        if found != expected:
            assert known["draft_margin"][i] <= TIE, (known["start"], i)
            return i
        assert margins[i] == pytest.approx(known["draft_margin"][i], abs=MARGIN_TOLERANCE)
        if block.confidence is not None:
            confidence = known["confidence"][i]
            assert block.confidence[i] == pytest.approx(confidence, abs=CONFIDENCE_TOLERANCE)
    return len(block.ids)


def rope(kind: str, **parameters: float) -> Rope:
    return make_rope({"rope_type": kind, "rope_theta": THETA, **parameters}, HEAD, LONGEST)


ROPES = {
    "default": rope("default"),
    "interleaved": make_rope({"rope_theta": THETA}, HEAD, LONGEST, interleaved=True),
    "partial": rope("default", partial_rotary_factor=0.5),
    "linear": rope("linear", factor=4.0),
    "proportional": rope("proportional", partial_rotary_factor=0.25),
    "yarn": rope("yarn", factor=8.0, original_max_position_embeddings=64),
    "llama3": rope(
        "llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=256,
    ),
}


@pytest.mark.parametrize("kind", ROPES)
def test_rope_makes_scores_depend_on_distance_alone(kind: str) -> None:
    turn = ROPES[kind]
    q, k = RNG.normal(size=(2, 1, 1, HEAD)).astype(np.float32)

    def score(at: int, other: int) -> float:
        return float((turn(q, np.array([at])) * turn(k, np.array([other]))).sum())

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
    assert score(9, 4) != pytest.approx(score(9, 8), abs=1e-3)
    back = turn(turn(q, np.array([77])), np.array([-77]))
    assert back == pytest.approx(turn.scale**2 * q, abs=1e-5) or kind == "partial"


def test_kinds_of_rope_are_the_default_where_they_change_nothing() -> None:
    plain = ROPES["default"]
    for other in (
        rope("yarn", factor=1.0, original_max_position_embeddings=64),
        rope("proportional", partial_rotary_factor=1.0),
        rope("linear", factor=1.0),
        make_rope({"type": "yarn", "rope_theta": THETA, "factor": 1.0}, HEAD, LONGEST),
    ):
        assert other.frequency == pytest.approx(plain.frequency)
        assert other.scale == 1.0
    x, at = RNG.normal(size=(3, 2, HEAD)).astype(np.float32), np.array([4, 8, 400])
    assert ROPES["linear"](x, at) == pytest.approx(plain(x, at // 4))


def test_interleaved_is_neox_after_the_permutation() -> None:
    x, at = RNG.normal(size=(3, 2, HEAD)).astype(np.float32), np.array([0, 5, 300])
    order = [*range(0, HEAD, 2), *range(1, HEAD, 2)]
    turned = ROPES["interleaved"](x, at)
    assert turned[..., order] == pytest.approx(ROPES["default"](x[..., order], at))
    assert np.abs(turned - ROPES["default"](x, at)).max() > 0.1


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    yarn, plain = ROPES["yarn"], ROPES["default"]
    ratio = plain.frequency / yarn.frequency
    assert ratio[0] == pytest.approx(1)
    assert ratio[-1] == pytest.approx(8)
    assert np.all(np.diff(ratio) >= 0)
    # a pair that turns beta_fast times or more over the trained length is fast
    turns = 64 * plain.frequency / (2 * math.pi)
    assert np.all(ratio[turns >= 32] == 1)
    assert yarn.scale == pytest.approx(0.1 * math.log(8) + 1)
    assert rope("yarn", factor=8.0, attention_factor=0.7).scale == 0.7
    both = rope("yarn", factor=8.0, mscale=1.0, mscale_all_dim=1.0)
    assert both.scale == 1.0
    assert np.any(rope("yarn", factor=8.0, beta_fast=2).frequency != both.frequency)


def test_proportional_turns_the_first_pairs_across_the_whole_head() -> None:
    x = RNG.normal(size=(1, 1, HEAD)).astype(np.float32)
    turned = ROPES["proportional"](x, np.array([9]))
    moved = np.flatnonzero(turned[0, 0] != x[0, 0]).tolist()
    assert moved == [0, 1, HEAD // 2, HEAD // 2 + 1]
    assert ROPES["partial"](x, np.array([9]))[..., 8:] == pytest.approx(x[..., 8:])


def test_an_unknown_rope_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="longrope"):
        rope("longrope")


def test_a_window_reaches_back_from_every_row_and_never_forward() -> None:
    block, memory = np.array([10, 11, 12]), np.arange(7, 13)
    full = Sight().hides(block, memory)
    assert not full.any()
    assert Sight(window=3).hides(block, memory).astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
    ]
    causal = Sight(window=3, causal=True).hides(block, memory)
    assert causal.astype(int).tolist()[0] == [1, 0, 0, 0, 1, 1]


def test_sinks_take_their_share_of_the_softmax() -> None:
    queries, keys, values = RNG.normal(size=(3, 4, 2, HEAD)).astype(np.float32)
    at = np.arange(4)
    memory = Memory(at, keys, values)

    def mixed(sinks: list[float] | None) -> FloatArray:
        given = None if sinks is None else np.array(sinks, np.float32)
        return attend(queries, at, memory, Sight(), 1.0, given).reshape(4, 2, HEAD)

    # a sink as heavy as all keys together halves the head's output
    heavy = np.log(np.exp(queries[2, 1] @ keys[:, 1].T).sum())
    assert mixed([-1e9, heavy])[2, 1] == pytest.approx(mixed(None)[2, 1] / 2, rel=1e-4)
    assert mixed([-1e9, heavy])[:, 0] == pytest.approx(mixed(None)[:, 0])


def test_convolutions_read_rows_before_and_none_outside_the_block() -> None:
    rows, taps, d, groups = 4, 3, 6, 2
    x = RNG.normal(size=(rows, d)).astype(np.float32)
    conv = Convolution(
        RNG.normal(size=(2, taps, d)).astype(np.float32),
        RNG.normal(size=(2 * taps * groups, d)).astype(np.float32),
    )
    kernels = conv.kernels(x)
    for side in (0, 1):
        found = conv.apply(kernels[:, side], x)
        for t in range(rows):
            for c in range(d):
                group, total = c // (d // groups), 0.0
                for j in range(min(taps, t + 1)):
                    read = conv.projection[(side * taps + j) * groups + group] @ x[t]
                    total += float((conv.base[side, j, c] + read) * x[t - j, c])
                assert found[t, c] == pytest.approx(total, abs=1e-4)


def test_the_selector_weighs_candidates_by_who_comes_before() -> None:
    v, r, d, rows = 7, 3, 4, 5
    predecessor, successor = RNG.normal(size=(2, v, r)).astype(np.float32)
    gate, hidden = RNG.normal(size=(r, d)), RNG.normal(size=(rows, d))
    base = RNG.normal(size=(rows, v)).astype(np.float32)
    head = SelectorHead(predecessor, successor, gate.astype(np.float32), 3)
    previous, expected = 2, []
    for i in range(rows):
        best: tuple[float, int] = (-math.inf, -1)
        for b in sorted(range(v), key=lambda b: -base[i, b])[:3]:
            link = sum(
                float(predecessor[previous, k] * successor[b, k] * (gate[k] @ hidden[i]))
                for k in range(r)
            )
            best = max(best, (float(base[i, b]) + link, b))
        previous = best[1]
        expected.append(previous)
    assert head.chain(base, hidden.astype(np.float32), 2).ids == expected
    every = SelectorHead(predecessor, successor, 0 * head.gate, 3, multiplier=2.0, softcap=5.0)
    chain = every.chain(base, hidden.astype(np.float32), 2)
    assert chain.ids == base.argmax(axis=1).tolist()
    assert chain.logits == pytest.approx(5 * np.tanh(2 * base / 5))


def write_safetensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    header, data = dict[str, Any](), b""
    for name, (dtype, values) in tensors.items():
        raw = values.tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": span}
        data += raw
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_tensors_come_as_float32_from_every_part(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.25, 3.0]], np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    write_safetensors(tmp_path / "a.safetensors", {"model.x": ("BF16", halves)})
    more: dict[str, Stored] = {
        "y": ("F16", values.astype(np.float16)),
        "z": ("F8_E5M2", halves),
        "w": ("F32", values),
    }
    write_safetensors(tmp_path / "b.safetensors", more)
    (tmp_path / "config.json").write_text("{}")
    weights = Checkpoint(tmp_path)
    for name in ("x", "y", "w"):
        assert np.array_equal(weights(name), values)
    assert weights.unread == {"z"}
    with pytest.raises(ModelLoadError, match="F8_E5M2"):
        weights("z")
    with pytest.raises(ModelLoadError, match="no tensor 'q'"):
        weights("q")


def test_small_floats_have_their_standards_values() -> None:
    patterns = {0x00: 0.0, 0x01: 2**-9, 0x07: 7 * 2**-9, 0x08: 2**-6, 0x38: 1.0, 0x7E: 448.0}
    bits = np.array(list(patterns), np.uint8)
    assert quantised.e4m3(bits).tolist() == list(patterns.values())
    assert quantised.e4m3(bits | 0x80).tolist() == [-value for value in patterns.values()]
    assert quantised.e8m0(np.array([127, 120, 130], np.uint8)).tolist() == [1.0, 2**-7, 8.0]
    packed = np.array([[0x10, 0x32, 0x54, 0x76], [0x98, 0xBA, 0xDC, 0xFE]], np.uint8)
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert quantised.e2m1(packed).tolist() == [values, [-value for value in values]]


def test_scales_cover_their_part_of_a_weight(tmp_path: Path) -> None:
    ones, twos = np.full((2, 32), 0x22, np.uint8), np.full((130, 129), 0x40, np.uint8)
    stored: dict[str, Stored] = {
        "nv.weight": ("U8", ones),
        "nv.weight_scale": ("F8_E4M3", np.array([[0x38, 0x40, 0x48, 0x50]] * 2, np.uint8)),
        "nv.weight_scale_2": ("F32", np.array(0.5, np.float32)),
        "mx.weight": ("I8", ones.view(np.int8)),
        "mx.scale": ("F8_E8M0", np.array([[127, 128], [129, 130]], np.uint8)),
        "fp.weight": ("F8_E4M3", twos),
        "fp.scale": ("F8_E8M0", np.array([[127, 128], [129, 130]], np.uint8)),
    }
    write_safetensors(tmp_path / "a.safetensors", stored)
    (tmp_path / "config.json").write_text("{}")
    weights = Checkpoint(tmp_path)
    assert weights("nv.weight")[1, [0, 15, 16, 32, 63]].tolist() == [0.5, 0.5, 1, 2, 4]
    assert weights("mx.weight")[:, [0, 31, 32]].tolist() == [[1, 1, 2], [4, 4, 8]]
    assert weights("fp.weight")[[0, 127, 128]][:, [127, 128]].tolist() == [[2, 4], [2, 4], [8, 16]]
    assert not weights.unread


def repackaged(shared: Path, folder: Path, **changes: Any) -> Path:  # noqa: ANN401
    """tiny-dspark under another configuration; None removes a key."""
    source = shared / "models" / "tiny-dspark"
    config = json.loads((source / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    (folder / "model.safetensors").symlink_to((source / "model.safetensors").resolve())
    return folder


PACKAGINGS: dict[str, dict[str, Any]] = {
    "specforge": {
        "architectures": ["DSparkDraftModel"],
        "target_layer_ids": None,
        "mask_token_id": None,
        "dflash_config": {
            "target_layer_ids": [1, 4, 8],
            "mask_token_id": 4095,
            "projector_type": "dspark",
        },
    },
    "speculators": {
        "architectures": ["DSparkSpeculator"],
        "target_layer_ids": None,
        "aux_hidden_state_layer_ids": [2, 5, 9],
        "sample_from_anchor": True,
        "hidden_size": None,
        "transformer_layer_config": {"hidden_size": 256},
    },
}


@pytest.mark.parametrize("packaging", PACKAGINGS)
def test_one_draft_is_the_same_in_every_packaging(
    shared: Path, tmp_path: Path, packaging: str
) -> None:
    models = shared / "models"
    one = load(models / "tiny-dspark", models / "tiny-target")
    other = load(repackaged(shared, tmp_path, **PACKAGINGS[packaging]), models / "tiny-target")
    assert (other.taps, other.first, other.mask) == (one.taps, one.first, one.mask)
    features = RNG.normal(size=(6, 768)).astype(np.float32)
    blocks = [draft.block(draft.context(features), 5, 6, 7) for draft in (one, other)]
    assert np.array_equal(blocks[0].logits, blocks[1].logits)


def test_rope_style_and_windows_come_from_the_configuration(shared: Path, tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    changes = {"layer_types": kinds, "use_sliding_window": True, "sliding_window": 9}
    folder = repackaged(shared, tmp_path, rope_is_neox_style=False, **changes)
    draft = load(folder, shared / "models" / "tiny-target")
    backbone = draft.backbone
    assert isinstance(backbone, DenseBackbone)
    assert [layer.sight for layer in backbone.layers] == [Sight(9), Sight()]
    assert backbone.shape.rope.interleaved


def test_layouts_and_heads_follow_the_checkpoint(shared: Path) -> None:
    models = shared / "models"
    found = {name: load(models / f"tiny-{name}", models / "tiny-target") for name in NAMES}
    assert [draft.first for draft in found.values()] == [0, 1, 1, 0, 0]
    assert [draft.taps for draft in found.values()] == [(2, 5, 9)] * 5
    kinds = [type(draft.head) for draft in found.values()]
    assert kinds == [MarkovHead, PlainHead, MarkovHead, MarkovHead, MarkovHead]


def test_a_tensor_that_nothing_reads_is_an_error(shared: Path, tmp_path: Path) -> None:
    folder = repackaged(shared, tmp_path)
    extra = {"layers.0.self_attn.q_proj.bias": ("F32", np.zeros(256, np.float32))}
    write_safetensors(folder / "z.safetensors", extra)
    with pytest.raises(ModelLoadError, match=r"q_proj\.bias"):
        load(folder, shared / "models" / "tiny-target")
