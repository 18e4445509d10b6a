"""The reference implementation's rollouts: same tokens, same drafts, same confidences."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llamaspec.completion import Completion
from llamaspec.options import LoadOptions
from llamaspec.session import Session, load
from llamaspec.trace import Round
from tests.converted import make

pytestmark = pytest.mark.native

CASES = [
    ("tiny-dspark-f32.gguf", "oracle-tiny-dspark.public.jsonl"),
    ("tiny-dflash-f32.gguf", "oracle-tiny-dflash.public.jsonl"),
    ("tiny-dspark-speculators-f32.gguf", "oracle-tiny-dspark-speculators.public.jsonl"),
    ("tiny-dspark-gated", "oracle-tiny-dspark-gated.public.jsonl"),
    ("tiny-dspark-rnn", "oracle-tiny-dspark-rnn.public.jsonl"),
]
HEADS = ["auto", "graph", "python"]
CONFIDENCE_TOLERANCE = 0.01


def oracle(shared: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (shared / "oracles" / name).read_text().splitlines()]


@pytest.fixture(scope="module", params=[(*case, head) for case in CASES for head in HEADS], ids=str)
def rollouts(
    request: pytest.FixtureRequest,
    shared: Path,
    ggufs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[tuple[dict[str, Any], Completion]]]:
    """Every oracle line with our completion of it, in the reference's own precision."""
    draft, name, head = request.param
    target, path = ggufs / "tiny-target-f32.gguf", ggufs / draft
    if not path.suffix:
        # of these there are checkpoints only
        path = tmp_path_factory.mktemp("converted") / f"{draft}.gguf"
        make(shared / "models" / draft, shared / "models" / "tiny-target", path)
    # f32 caches and no flash attention: the reference computes in fp32 throughout
    exact = LoadOptions(head=head, cache_type="f32", flash_attention="off", threads=1)
    with load(target, path, options=exact) as session:
        yield [(line, complete(session, line)) for line in oracle(shared, name)]


def complete(session: Session, line: dict[str, Any]) -> Completion:
    limit, most = len(line["output_token_ids"]), session.draft_limit
    return session.generate(
        line["prompt_token_ids"], max_tokens=limit, draft_max=most, cache_prompt=False
    )


def test_the_text_is_the_targets_own_greedy_text(
    rollouts: list[tuple[dict[str, Any], Completion]],
) -> None:
    assert rollouts
    for line, done in rollouts:
        assert line["output_token_ids"] == list(done.token_ids), line["prompt"]


def test_rounds_propose_what_the_reference_proposes(
    rollouts: list[tuple[dict[str, Any], Completion]],
) -> None:
    total = same = expected = 0
    for line, done in rollouts:
        reference = {r["start"]: r for r in line["rounds"]}
        expected += len(reference)
        for record in done.rounds:
            # a draft tie that falls the other way shifts where the later rounds start
            known = reference.get(record.start)
            if known is None:
                continue
            total += 1
            # the last rounds are cut where the text has to end, the reference's are not
            ids = known["draft"][: len(record.draft)]
            assert known["anchor"] == record.anchor
            same += ids == list(record.draft) and close(record, known["confidence"])
    assert total >= 0.97 * expected, (total, expected)
    assert same >= 0.99 * total, (same, total)


def close(record: Round, reference: list[float] | None) -> bool:
    if reference is None or not record.draft:
        return record.confidence is None
    assert record.confidence is not None
    differences = [abs(a - b) for a, b in zip(record.confidence, reference, strict=False)]
    return max(differences) <= CONFIDENCE_TOLERANCE


def test_accepted_counts_are_the_references(
    rollouts: list[tuple[dict[str, Any], Completion]],
) -> None:
    differing = total = 0
    for line, done in rollouts:
        reference = {r["start"]: r for r in line["rounds"]}
        for record in done.rounds[:-1]:
            if record.start in reference:
                total += 1
                differing += reference[record.start]["n_accepted"] != record.accepted
    assert differing <= 0.01 * total, (differing, total)
