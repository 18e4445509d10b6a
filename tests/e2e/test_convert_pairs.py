"""The trained drafts from their checkpoints: the published rollouts, tied and untied targets."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from llamaspec.options import LoadOptions
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.describe import describe
from llamaspec.session import Session, load
from tests.checkpoints import Pair
from tests.checkpoints.writing import Stored, to_bf16, write_safetensors
from tests.converted import make, read_shards, reconfigure, tensor_types
from tests.e2e import test_oracles as oracles
from tests.rewrite import rewrite, tensor

pytestmark = pytest.mark.native

HEADS = {
    "tiny-dspark": "vanilla",
    "tiny-dspark-gated": "gated",
    "tiny-dspark-rnn": "rnn",
    "tiny-dspark-speculators": "vanilla",
    "tiny-dflash": "none",
}
TABLES = {"token_embd.weight", "output.weight"}
EVERY = 6  # of the 28 lines of an oracle
# f32 caches and no flash attention: the oracles compute in fp32 throughout
EXACT = LoadOptions(cache_type="f32", flash_attention="off", threads=1)
TOKENS = 40


@pytest.fixture(scope="module")
def converted(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All five drafts."""
    folder, models = tmp_path_factory.mktemp("converted"), shared / "models"
    paths = {name: folder / f"{name}.gguf" for name in HEADS}
    for name, path in paths.items():
        make(models / name, models / "tiny-target", path)
    return paths


@pytest.mark.parametrize("name", HEADS)
def test_trained_drafts_convert(name: str, converted: dict[str, Path]) -> None:
    found = describe(converted[name]).draft
    assert found is not None
    assert found.head == HEADS[name]
    assert found.taps == (2, 5, 9)
    # copies of the target's tables stay out, a reduced vocabulary's head cannot
    own = TABLES & tensor_types(converted[name]).keys()
    assert own == (TABLES if name == "tiny-dspark-speculators" else set())


@pytest.mark.parametrize("name", HEADS)
def test_converted_drafts_propose_what_the_oracles_propose(
    name: str, converted: dict[str, Path], shared: Path, ggufs: Path
) -> None:
    lines = oracles.oracle(shared, f"oracle-{name}.public.jsonl")[::EVERY]
    with load(ggufs / "tiny-target-f32.gguf", converted[name], options=EXACT) as session:
        rollouts = [(line, oracles.complete(session, line)) for line in lines]
    oracles.test_the_text_is_the_targets_own_greedy_text(rollouts)
    oracles.test_rounds_propose_what_the_reference_proposes(rollouts)
    oracles.test_accepted_counts_are_the_references(rollouts)


@dataclass(frozen=True)
class Untied:
    """The trained pair with a head of the target's own, which computes the same.

    Columns of the final norms are scaled by powers of two, and those of the heads that read them by
    the inverses: every product stays the same number. `folders` has the draft's and the target's
    checkpoint, `target` is the same target as GGUF, `tied` what the tied pair does.
    """

    folders: Pair
    target: Path
    tied: list[list[int]]


def columns() -> FloatArray:
    exponents = np.random.default_rng(7).integers(-6, 7, 256)
    return np.ldexp(np.float32(1), exponents).astype(np.float32)


def inverses() -> FloatArray:
    return np.reciprocal(columns())


def scaled(stored: Stored, by: FloatArray) -> Stored:
    """A bf16 tensor times a factor a column; exact for powers of two."""
    bits = np.frombuffer(stored.data, "<u2").astype(np.uint32) << 16
    values = bits.view(np.float32).reshape(stored.shape) * by
    return Stored("BF16", stored.shape, to_bf16(values).tobytes())


def untie_target(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    folder.chmod(0o755)
    (folder / "config.json").chmod(0o644)
    tensors = read_shards(source)
    head = scaled(tensors["model.embed_tokens.weight"], inverses())
    norm = scaled(tensors["model.norm.weight"], columns())
    changed = {**tensors, "model.norm.weight": norm, "lm_head.weight": head}
    write_safetensors(folder / "model.safetensors", changed)
    reconfigure(folder, lambda config: config.update(tie_word_embeddings=False))


def untie_draft(source: Path, folder: Path) -> None:
    """tiny-dspark as if it had been trained on the untied target, with copies of its tables."""
    folder.mkdir()
    shutil.copyfile(source / "config.json", folder / "config.json")
    tensors, name = read_shards(source), "confidence_head.proj.weight"
    hidden = np.ones(tensors[name].shape[1], np.float32)
    hidden[:256] = inverses()
    changed = {
        "norm.weight": scaled(tensors["norm.weight"], columns()),
        "lm_head.weight": scaled(tensors["lm_head.weight"], inverses()),
        name: scaled(tensors[name], hidden),
    }
    write_safetensors(folder / "model.safetensors", tensors | changed)


@pytest.fixture(scope="module")
def prompts(shared: Path) -> list[list[int]]:
    lines = oracles.oracle(shared, "oracle-tiny-dspark.public.jsonl")[::EVERY]
    return [line["prompt_token_ids"] for line in lines]


def accepted(target: Path, draft: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Accepted proposals of every round, by prompt."""
    with load(target, draft, options=EXACT) as session:
        return [rounds(session, prompt) for prompt in prompts]


def rounds(session: Session, prompt: list[int]) -> list[int]:
    done = session.generate(prompt, max_tokens=TOKENS, draft_max=session.draft_limit)
    return [record.accepted for record in done.rounds]


def length(counts: list[list[int]]) -> float:
    """Mean accepted proposals a round."""
    return float(np.mean([count for rounds in counts for count in rounds]))


@pytest.fixture(scope="module")
def untied(
    shared: Path,
    ggufs: Path,
    prompts: list[list[int]],
    converted: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Untied]:
    models, folder = shared / "models", tmp_path_factory.mktemp("untied")
    folders = Pair(folder / "draft", folder / "target")
    untie_target(models / "tiny-target", folders.target)
    untie_draft(models / "tiny-dspark", folders.draft)
    source = ggufs / "tiny-target-f32.gguf"
    changed = {
        "output_norm.weight": tensor(source, "output_norm.weight") * columns(),
        "output.weight": tensor(source, "token_embd.weight") * inverses(),
    }
    target = rewrite(source, folder / "target.gguf", tensors=changed)
    yield Untied(folders, target, accepted(source, converted["tiny-dspark"], prompts))
    shutil.rmtree(folder)


@pytest.mark.parametrize("of", ["folder", "gguf"])
@pytest.mark.parametrize("standalone", [False, True], ids=["target's", "own"])
def test_an_untied_pair_accepts_as_the_tied_one(
    of: str, standalone: bool, untied: Untied, prompts: list[list[int]], tmp_path: Path
) -> None:
    target = untied.folders.target if of == "folder" else untied.target
    output = tmp_path / "draft.gguf"
    make(untied.folders.draft, target, output, standalone=standalone)
    assert TABLES & tensor_types(output).keys() == (TABLES if standalone else set())
    assert accepted(untied.target, output, prompts) == untied.tied


def test_a_draft_of_the_tied_target_brings_its_tables(
    untied: Untied, shared: Path, prompts: list[list[int]], tmp_path: Path
) -> None:
    output = tmp_path / "draft.gguf"
    made = make(shared / "models" / "tiny-dspark", untied.folders.target, output)
    assert tensor_types(output).keys() >= TABLES
    assert "differ from the target's" in " ".join(made.plan.notes)
    assert accepted(untied.target, output, prompts) == untied.tied


def test_a_lone_embedding_serves_as_the_wrong_head_until_it_is_repacked(
    untied: Untied, prompts: list[list[int]], tmp_path: Path
) -> None:
    whole, repaired = tmp_path / "whole.gguf", tmp_path / "repaired.gguf"
    make(untied.folders.draft, untied.folders.target, whole, standalone=True)
    lone = rewrite(whole, tmp_path / "lone.gguf", tensors={"output.weight": None})
    assert length(accepted(untied.target, lone, prompts)) < length(untied.tied) / 2
    make(lone, untied.target, repaired)
    assert accepted(untied.target, repaired, prompts) == untied.tied
