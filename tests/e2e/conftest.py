"""The bundled pair, loaded once for the tests that only generate with it."""

from collections.abc import Iterator

import pytest

from llamaspec import demo
from llamaspec.session import Session, load


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with load(demo.target_path(), demo.draft_path(), threads=1, context=512) as opened:
        yield opened
