"""A hub on this machine: what the real client asks for, answered over HTTP."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.conftest import ROOT

COMMIT = "a" * 40
REVISIONS = ("main", "v1", COMMIT)
# the client waits half a minute between its tries to reach a hub that is not there
SCRIPT = """
import sys
import time
time.sleep = lambda seconds: None
from llamaspec.errors import LlamaSpecError
from llamaspec.hub import resolve
from llamaspec.models import find_draft, find_target
try:
    if len(sys.argv) > 2:
        print(find_draft(sys.argv[2], find_target(sys.argv[1])))
    elif sys.argv[1].startswith("hf://"):
        print(resolve(sys.argv[1]))
    else:
        print(find_target(sys.argv[1]).path)
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
    commit: str = COMMIT
    log: list[tuple[str, str, str | None]] = field(default_factory=list)

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these words in a process of its own, whose cache is this hub's."""
        variables = {"HF_ENDPOINT": self.address, "HF_HOME": str(self.home), "NO_PROXY": "*"}
        variables["LLAMASPEC_CACHE"] = str(self.home / "llamaspec")
        return subprocess.run(
            [sys.executable, *words],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | variables | env,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def downloads(self) -> list[tuple[str, str | None]]:
        """Path and range of every download, without what else the client asks for."""
        return [entry[1:] for entry in self.log if entry[0] == "GET" and "/resolve/" in entry[1]]

    def path(self, reference: str, *draft: str, **env: str) -> Path:
        """The file of a target's name, or of its draft's, that must be found."""
        done = self.run("-c", SCRIPT, reference, *draft, **env)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip())

    def error(self, reference: str, *draft: str, **env: str) -> str:
        """As path, for what must not be found: the error's kind and text."""
        done = self.run("-c", SCRIPT, reference, *draft, **env)
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
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts[0] == "datasets":
                parts = parts[1:]
            elif parts[:2] == ["api", "datasets"]:
                parts = ["api", "models", *parts[2:]]
            owner, name, kind, revision, *rest = [*parts, *[""] * 4]
            if owner == "api":
                self.describe(f"{kind}/{revision}", *rest[:2])
                return
            files = hub.files.get(f"{owner}/{name}")
            content = (files or {}).get("/".join(filter(None, rest)))
            if owner == "locked":
                self.refuse(403, "GatedRepo")
            elif kind != "resolve" or files is None:
                self.refuse(404, "RepoNotFound")
            elif revision not in (*REVISIONS, hub.commit):
                self.refuse(404, "RevisionNotFound")
            elif content is None:
                self.refuse(404, "EntryNotFound")
            else:
                self.serve(content, body)

        def describe(self, repository: str, what: str, revision: str) -> None:
            files = hub.files.get(repository)
            if files is None:
                self.refuse(404, "RepoNotFound")
            elif what and revision not in (*REVISIONS, hub.commit):
                self.refuse(404, "RevisionNotFound")
            elif what == "tree":
                listed = [
                    {
                        "type": "file",
                        "path": name,
                        "size": len(data),
                        "oid": sha256(data).hexdigest(),
                    }
                    for name, data in files.items()
                ]
                self.serve(json.dumps(listed).encode(), True)
            else:
                siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
                answer = {"_id": "1", "id": repository, "sha": hub.commit, "siblings": siblings}
                self.serve(json.dumps(answer).encode(), True)

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
            self.send_header("X-Repo-Commit", hub.commit)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(part)))
            if begin:
                self.send_header(
                    "Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}"
                )
            self.end_headers()
            if body:
                cut = hub.cuts > 0 and "/resolve/" in self.path
                hub.cuts -= cut
                self.wfile.write(part[: len(part) // 2] if cut else part)
                self.close_connection = self.close_connection or cut

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub at work, its address filled in."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(hub)) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield hub
        server.shutdown()
