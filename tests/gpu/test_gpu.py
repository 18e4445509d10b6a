"""The bundled pair on a GPU: build with --cuda (or --vulkan, --metal), then `pytest -m gpu`."""

import pytest

from llamaspec.bench.pairs import PROMPTS
from llamaspec.runtime.backend import devices
from llamaspec.session import Session, load

pytestmark = [pytest.mark.native, pytest.mark.gpu]

# of 256 tokens; a near tie may fall differently in a pass of another width
LEAST_IDENTICAL = 0.9


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    if not any(device.is_gpu for device in devices()):
        pytest.skip("no GPU backend with a device")


def first_difference(session: Session, prompt: str) -> tuple[int, int]:
    """Where plain and speculative ids part, and how many there are."""
    messages = [{"role": "user", "content": prompt}]
    fast, slow = (
        session.generate(messages, max_tokens=64, draft_max=most, cache_prompt=False).token_ids
        for most in (session.draft_limit, 0)
    )
    pairs = zip(fast, slow, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(slow)), len(slow)


@pytest.mark.parametrize(("layers", "draft_layers"), [(-1, -1), (-1, 0), (0, -1)])
def test_the_pair_decodes_on_the_gpu_wherever_its_halves_are(
    layers: int, draft_layers: int
) -> None:
    with load(n_gpu_layers=layers, n_gpu_layers_draft=draft_layers) as session:
        found = [first_difference(session, prompt) for _, prompt in PROMPTS]
        assert session.last is not None
        drafted = session.generate(PROMPTS[2][1], max_tokens=64, draft_max=session.draft_limit)
    assert sum(same for same, _ in found) >= LEAST_IDENTICAL * sum(n for _, n in found)
    assert drafted.stats.accepted > 0
