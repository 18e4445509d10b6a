"""hf:// references against a hub on this machine, through the real client in its own process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from llamaspec.errors import ModelLoadError, OptionError
from llamaspec.hub import resolve
from tests.conftest import ROOT
from tests.miniature import write_target

COMMIT = "a" * 40
# the client waits half a minute between its tries to reach a hub that is not there
SCRIPT = """
import sys
import time
time.sleep = lambda seconds: None
from llamaspec.errors import LlamaSpecError
from llamaspec.hub import resolve
try:
    print(resolve(sys.argv[1]))
except LlamaSpecError as error:
    sys.exit(f"{type(error).__name__}|{error}")
"""


@dataclass
class Hub:
    """A fake hub: repository -> file -> bytes. `cuts` is how many downloads break half-way."""

    files: dict[str, dict[str, bytes]]
    home: Path
    address: str = ""
    cuts: int = 0
    log: list[tuple[str, str, str | None]] = field(default_factory=list)

    def run(self, reference: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Resolve a reference in a process of its own, whose cache is this hub's."""
        variables = {"HF_ENDPOINT": self.address, "HF_HOME": str(self.home), "NO_PROXY": "*"}
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, reference],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | variables | env,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def path(self, reference: str, **env: str) -> Path:
        """As run, for a reference that must resolve."""
        done = self.run(reference, **env)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip())

    def error(self, reference: str, **env: str) -> str:
        """As run, for one that must not."""
        done = self.run(reference, **env)
        assert done.returncode == 1, done
        return done.stderr.strip().splitlines()[-1]


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            hub.log.append((self.command, self.path, self.headers["Range"]))
            owner, name, kind, revision, *rest = [*self.path.strip("/").split("/"), *[""] * 4]
            files = hub.files.get(f"{owner}/{name}")
            content = (files or {}).get("/".join(filter(None, rest)))
            if owner == "locked":
                self.refuse(403, "GatedRepo")
            elif kind != "resolve" or files is None:
                self.refuse(404, "RepoNotFound")
            elif revision not in ("main", "v1"):
                self.refuse(404, "RevisionNotFound")
            elif content is None:
                self.refuse(404, "EntryNotFound")
            else:
                self.serve(content, body)

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def serve(self, content: bytes, body: bool) -> None:
            begin = int((self.headers["Range"] or "bytes=0-").split("=")[1].split("-")[0])
            part = content[begin:]
            self.send_response(206 if begin else 200)
            self.send_header("ETag", f'"{sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(part)))
            if begin:
                self.send_header(
                    "Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}"
                )
            self.end_headers()
            if body:
                cut = hub.cuts > 0
                hub.cuts -= cut
                self.wfile.write(part[: len(part) // 2] if cut else part)
                self.close_connection = self.close_connection or cut

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    content = write_target(tmp_path / "m.gguf").read_bytes()
    split = {f"big-0000{number}-of-00002.gguf": content for number in (1, 2)}
    hub = Hub({"ann/tiny": {"m.gguf": content, "sub/q8/m.gguf": content} | split}, tmp_path / "hf")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(hub)) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield hub
        server.shutdown()


def gets(hub: Hub) -> list[tuple[str, str | None]]:
    """Downloads, without what else the client asks a hub for."""
    return [entry[1:] for entry in hub.log if entry[0] == "GET" and "/resolve/" in entry[1]]


def test_local_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    assert resolve(tmp_path / "x.gguf") == tmp_path / "x.gguf"
    assert resolve("models/x.gguf") == Path("models/x.gguf")
    assert resolve("owner/repo") == Path("owner/repo")


@pytest.mark.parametrize(
    "reference",
    [
        "hf://ann/tiny",
        "hf://ann/tiny/readme.md",
        "hf://tiny/m.gguf",
        "hf://ann/tiny/../../m.gguf",
        "hf://ann/tiny/m.gguf@",
        "hf://",
    ],
)
def test_references_of_another_form(reference: str) -> None:
    with pytest.raises(OptionError, match="hf://owner/repo/path/to/file"):
        resolve(reference)


def test_downloads_once_and_then_needs_no_network(hub: Hub) -> None:
    path = hub.path("hf://ann/tiny/sub/q8/m.gguf")
    assert path.read_bytes() == hub.files["ann/tiny"]["sub/q8/m.gguf"]
    assert path.is_relative_to(hub.home)
    assert gets(hub) == [("/ann/tiny/resolve/main/sub/q8/m.gguf", None)]
    assert hub.path("hf://ann/tiny/sub/q8/m.gguf", HF_HUB_OFFLINE="1") == path
    assert hub.path("hf://ann/tiny/sub/q8/m.gguf") == path
    assert len(gets(hub)) == 1
    hub.address = "http://127.0.0.1:9"
    assert hub.path("hf://ann/tiny/sub/q8/m.gguf") == path


def test_a_revision(hub: Hub) -> None:
    assert hub.path("hf://ann/tiny/m.gguf@v1").is_file()
    assert gets(hub) == [("/ann/tiny/resolve/v1/m.gguf", None)]


def test_a_broken_download_goes_on_where_it_stopped(hub: Hub) -> None:
    # the client writes pieces of 10 MiB; what is less than that it fetches again
    content = hub.files["ann/tiny"]["long.gguf"] = bytes(range(256)) * (24 << 12)
    hub.cuts = 1
    assert hub.path("hf://ann/tiny/long.gguf").read_bytes() == content
    assert [span for _, span in gets(hub)] == [None, f"bytes={10 << 20}-"]


def test_a_split_model_comes_whole(hub: Hub) -> None:
    path = hub.path("hf://ann/tiny/big-00001-of-00002.gguf")
    assert path.name == "big-00001-of-00002.gguf"
    assert path.with_name("big-00002-of-00002.gguf").is_file()


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("hf://ann/absent/m.gguf", "no repository ann/absent"),
        ("hf://ann/tiny/m.gguf@v9", "ann/tiny has no revision v9"),
        ("hf://ann/tiny/none.gguf@v1", "ann/tiny at v1 has no file none.gguf"),
        ("hf://locked/tiny/m.gguf", "locked/tiny is gated"),
    ],
)
def test_what_the_hub_refuses(hub: Hub, reference: str, words: str) -> None:
    error = hub.error(reference)
    assert error.startswith(f"{ModelLoadError.__name__}|{reference}: ")
    assert words in error


def test_without_network_and_cache(hub: Hub) -> None:
    assert "not cached" in hub.error("hf://ann/tiny/m.gguf", HF_HUB_OFFLINE="1")
    hub.address = "http://127.0.0.1:9"
    assert "not cached" in hub.error("hf://ann/tiny/m.gguf")
    assert not hub.log
