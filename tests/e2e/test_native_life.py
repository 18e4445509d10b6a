"""Memory and lifetimes: long runs, closing in any order, leaving without closing."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.native

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600


def python(code: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_a_thousand_generations_do_not_grow() -> None:
    result = python(
        """
        import llamaspec

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1])

        def work(session, i):
            kind = i % 4
            prompt = f"There are {i} drawers with 8 pencils in each drawer."
            if kind == 0:
                session.generate(prompt, max_tokens=12)
            elif kind == 1:
                session.generate([{"role": "user", "content": prompt}], max_tokens=12, stop="7")
            elif kind == 2:
                session.generate(prompt, max_tokens=12, temperature=0.9, seed=i)
            else:
                stream = session.stream(prompt, max_tokens=40)
                next(stream)
                stream.close()

        with llamaspec.load(threads=1, context=512) as session:
            # every shape of pass, whose graphs are kept
            for width in range(1, 8):
                for limit in range(2, 12):
                    session.generate("One, two, three,", max_tokens=limit, draft_max=width)
            for i in range(1600):
                work(session, i)
                if i == 399:
                    early = resident()
            print(early, resident())
        """
    )
    assert result.returncode == 0, result.stderr
    early, late = map(int, result.stdout.split())
    assert late <= 1.05 * early, f"{early} pages after 400 generations, {late} after 1600"


@pytest.mark.parametrize(
    "ending",
    [
        "a.close(); b.close()",
        "b.close(); a.close(); a.close()",
        "a._pair.model.close(); a.close(); b.close()",
        "a._pair.context.close(); b.close(); a.close()",
        "a._pair.draft_model.close(); a._pair.model.close()",
        "del a; del b",
        "del b, stream; a.close()",
        "pass",
        "import gc; a.me = a; b.me = b; del a, b, stream; gc.collect()",
        "import os, threading; threading.Thread(target=a.close).start()",
        "raise SystemExit",
    ],
)
def test_sessions_close_in_any_order_and_at_exit(ending: str) -> None:
    code = f"""
    import llamaspec
    a = llamaspec.load(threads=1, context=256)
    b = llamaspec.load(threads=1, context=256)
    stream = b.stream("Hello", max_tokens=30)
    next(stream)
    print(len(a.generate("Hello", max_tokens=5).token_ids))
    {ending}
    """
    result = python(code, "-X", "dev", PYTHONMALLOC="debug")
    assert (result.returncode, result.stderr, result.stdout) == (0, "", "5\n")


def test_a_closed_session_says_so() -> None:
    code = """
    import llamaspec
    session = llamaspec.load(threads=1, context=256)
    stream = session.stream("Hello", max_tokens=30)
    next(stream)
    session.close()
    for use in (lambda: session.generate("Hello"), lambda: next(stream), session.__enter__):
        try:
            use()
        except llamaspec.LlamaSpecError as error:
            print(type(error).__name__, error)
    """
    result = python(code, "-X", "dev", PYTHONMALLOC="debug")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("ClosedError this session is closed") for line in lines)


@pytest.mark.parametrize(
    "pinning", [{}, {"OMP_PROC_BIND": "true"}, {"OMP_PLACES": "cores"}, {"GOMP_CPU_AFFINITY": "0"}]
)
def test_openmp_that_pins_threads_leaves_their_number(pinning: dict[str, str]) -> None:
    result = python(
        """
        import os
        allowed = os.sched_getaffinity(0)
        import llamaspec
        with llamaspec.load(context=128) as session:
            session.generate("One,", max_tokens=2)
        from llamaspec.options import LoadOptions
        from llamaspec.processors import usable_processors
        assert usable_processors() == len(allowed), (usable_processors(), allowed)
        assert LoadOptions(threads=len(allowed)).n_threads == len(allowed)
        """,
        **pinning,
    )
    assert result.returncode == 0, result.stderr
