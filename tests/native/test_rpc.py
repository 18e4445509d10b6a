"""Targets whose layers are on RPC servers: the same texts, and one line where a server fails."""

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llamaspec import demo
from llamaspec.endpoints import endpoints
from llamaspec.errors import IncompatibleDraftError, OptionError
from llamaspec.ffi import lib
from llamaspec.runtime import remote
from llamaspec.session import load
from tests.conftest import ROOT
from tests.e2e.terminal import llamaspec, refusal
from tests.native.rpc_servers import BINARY, answering, free_port, relay, rpc_server

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not BINARY.is_file(), reason="built with --no-rpc"),
]

PROMPT = [{"role": "user", "content": demo.PROMPT}]
TOKENS = 48


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with rpc_server() as (address, _):
        yield address


@pytest.fixture(scope="module")
def plain() -> tuple[int, ...]:
    with load(threads=1) as session:
        return session.generate(PROMPT, max_tokens=TOKENS, draft_max=0).token_ids


@pytest.mark.parametrize("settings", [{}, {"n_gpu_layers": 4}, {"exact": True}, {"head": "python"}])
def test_the_same_text_with_the_layers_elsewhere(
    server: str, plain: tuple[int, ...], settings: dict[str, object]
) -> None:
    with load(rpc=server, threads=1, **settings) as session:  # type: ignore[arg-type]
        drafted = session.generate(PROMPT, max_tokens=TOKENS, draft_max=7)
        assert drafted.token_ids == plain
        assert drafted.stats.tau > 2
        again = session.generate(PROMPT, max_tokens=TOKENS, draft_max=0)
        assert again.token_ids == plain


def test_two_servers_and_two_sessions(server: str, plain: tuple[int, ...]) -> None:
    with rpc_server() as (second, _), load(rpc=f"{server},{second}", threads=1) as session:
        # the connection of one process serves all its sessions
        with load(rpc=second, threads=1) as other:
            assert other.generate(PROMPT, max_tokens=TOKENS).token_ids == plain
        assert session.generate(PROMPT, max_tokens=TOKENS).token_ids == plain


def test_a_draft_that_reads_the_targets_tables(server: str, ggufs: Path) -> None:
    pair = str(ggufs / "tiny-target-q8_0.gguf"), str(ggufs / "tiny-dflash-f32.gguf")
    with load(*pair, threads=1) as session:
        expected = session.generate(PROMPT, max_tokens=TOKENS, draft_max=7)
    with load(*pair, rpc=server, threads=1) as session:
        found = session.generate(PROMPT, max_tokens=TOKENS, draft_max=7)
    assert found.token_ids == expected.token_ids
    assert found.stats.widths == expected.stats.widths


def test_a_draft_is_not_placed_on_a_server(server: str) -> None:
    name = remote.connect(endpoints("rpc", server))[0].name
    with pytest.raises(IncompatibleDraftError, match=f"{name} is a device of the RPC server"):
        load(rpc=server, device_draft=name)


# argument: an address. Prints what happens to a text while its server is killed.
KILLED = """
import os, signal, sys
from llamaspec import demo, errors, load
address, pid = sys.argv[1], int(sys.argv[2])
session = load(rpc=address, threads=1)
prompt = [{"role": "user", "content": demo.PROMPT}]
def interrupted():
    for number, piece in enumerate(session.stream(prompt, max_tokens=400)):
        if number == 3:
            os.kill(pid, signal.SIGKILL)
for complete in (interrupted, lambda: session.generate_batch([prompt, prompt])):
    try:
        complete()
        print("the whole text")
    except errors.DecodeError as error:
        print(error)
session.close()
print("closed")
"""


def run_script(script: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_a_server_killed_in_the_middle_of_a_text() -> None:
    with rpc_server() as (address, process):
        lines = run_script(KILLED, address, str(process.pid))
    assert len(lines) == 3
    for line in lines[:2]:
        assert f"the connection to the RPC server {address} is lost" in line
        assert "load the model again" in line
    assert lines[2] == "closed"


def test_after_a_loss_a_new_session_reaches_the_server_again(plain: tuple[int, ...]) -> None:
    port = free_port()
    with rpc_server(port) as (address, process):
        session = load(rpc=address, threads=1)
        process.kill()
        process.wait()
        with pytest.raises(OptionError, match=f"{address}.*refused"):
            load(rpc=address)
    with rpc_server(port), load(rpc=address, threads=1) as fresh:
        # the first session still holds what was lost
        assert fresh.generate(PROMPT, max_tokens=TOKENS).token_ids == plain
        session.close()
        assert fresh.generate(PROMPT, max_tokens=TOKENS).token_ids == plain


# arguments: a server's address, and after how many bytes of the client's it is cut off
CUT = """
import sys
from llamaspec import demo, errors, load
from tests.native.rpc_servers import relay
for most in map(int, sys.argv[2:]):
    with relay(sys.argv[1], most) as address:
        try:
            with load(rpc=address, threads=1) as session:
                session.generate(demo.PROMPT, max_tokens=32)
            print(most, "done")
        except errors.LlamaSpecError as error:
            print(most, type(error).__name__, error)
"""


def test_a_connection_may_break_anywhere(server: str) -> None:
    """Within hello, the devices, the weights, the buffers, the graphs: never an abort."""
    cuts = [0, 20, 40, 70, 80, 100, 130, 160, 200, 250, 300, 400, 1000, 100_000, 8_000_000]
    cuts += [31_500_000, 32_000_000, 32_500_000, 33_000_000, 34_000_000, 36_000_000]
    lines = run_script(CUT, server, *map(str, cuts))
    assert len(lines) == len(cuts)
    assert not any("Traceback" in line for line in lines)
    kinds = {line.split()[1] for line in lines}
    assert kinds <= {"OptionError", "ModelLoadError", "LlamaSpecError", "DecodeError", "done"}
    assert {"OptionError", "ModelLoadError", "DecodeError"} <= kinds, lines


def test_nobody_there() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(OptionError, match=f"RPC server {address}: .*refused.*ggml-rpc-server"):
        load(rpc=address)
    with pytest.raises(OptionError, match=r"no-such-host\.invalid:1"):
        load(rpc="no-such-host.invalid:1")


def hello(major: int, minor: int) -> bytes:
    return struct.pack("<Q4B24x", 28, major, minor, 0, 0)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (hello(lib.RPC_PROTO_MAJOR_VERSION - 1, 0), "speaks version"),
        (hello(lib.RPC_PROTO_MAJOR_VERSION, lib.RPC_PROTO_MINOR_VERSION + 1), "speaks version"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "something else"),
        (b"", "something else"),
        # it says the right thing and then nothing more
        (hello(lib.RPC_PROTO_MAJOR_VERSION, lib.RPC_PROTO_MINOR_VERSION), "RPC server"),
    ],
)
def test_something_else_there(answer: bytes, says: str) -> None:
    with answering(answer) as address, pytest.raises(OptionError, match=says) as refused:
        load(rpc=address)
    assert address in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_busy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_PATIENCE_S", 1.0)
    with (
        rpc_server() as (address, _),
        # through a relay it is another address, and so another client
        relay(address, 1 << 30) as other,
        load(rpc=address, threads=1),
        pytest.raises(OptionError, match="one process"),
    ):
        load(rpc=other)


def test_the_command_line(server: str) -> None:
    done = llamaspec("run", "--rpc", server, "-n", "8", "-t", "1", "--compare", "Say hello.")
    assert done.returncode == 0, done.stderr
    assert "outputs identical" in done.stderr
    for wrong in ("[::1]:50052", "nowhere", f"127.0.0.1:{free_port()}"):
        for command in (["run", "hello"], ["verify"], ["chat"], ["serve", "--port", "0"]):
            line = refusal(llamaspec(*command, "--rpc", wrong))
            assert wrong in line
