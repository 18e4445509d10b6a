"""How to serve: every setting and its default, once."""

import math
from dataclasses import dataclass
from ipaddress import ip_address

from llamaspec.errors import OptionError

DEFAULT_PORT = 8080
DEFAULT_SEQUENCES = 4
DEFAULT_QUEUE = 64
_MOST_EVERY_S = 2.0
MAX_CHOICES = 128
"""Texts of one request: prompts x n."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How to serve.

    host, port: where to listen; port 0 takes a free one. api_key: what callers must show,
    everywhere but on /health; None for nothing. name: of the model in replies, None for its file's.
    temperature: of requests that name none. max_body: bytes of a request's body. timeout_s: most
    seconds of a request; a text that takes longer ends there. grace_s: what requests under way get
    to finish when the server is told to stop. keep_alive_s: silence in a stream after which a
    comment is sent. stream_every_s: seconds for which tokens of a stream may be held back, to be
    sent together. origins: of pages elsewhere that browsers may let in, none by default.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    api_key: str | None = None
    name: str | None = None
    temperature: float = 1.0
    max_body: int = 8 << 20
    timeout_s: float = 600.0
    grace_s: float = 10.0
    keep_alive_s: float = 5.0
    stream_every_s: float = 0.05
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise OptionError(f"port is {self.port}; it must lie in 0 to 65535")
        if not self.host.strip():
            raise OptionError("host is empty; give an address such as 127.0.0.1 or 0.0.0.0")
        if self.api_key is not None and not (self.api_key and self.api_key.isprintable()):
            raise OptionError("the API key is empty or has control characters; give another")
        if self.name is not None and not (0 < len(self.name) <= 256 and self.name.isprintable()):
            raise OptionError(f"the model's name is {self.name!r:.80}; give up to 256 characters")
        if not (self.temperature == 0 or 1e-6 <= self.temperature <= 100):
            raise OptionError(f"temperature is {self.temperature}; it must be 0 or in 1e-6 to 100")
        if self.max_body < 1024:
            raise OptionError(f"a body of {self.max_body} bytes holds no request; allow 1024")
        for name in ("timeout_s", "grace_s", "keep_alive_s"):
            seconds = getattr(self, name)
            if not (math.isfinite(seconds) and seconds > 0):
                raise OptionError(f"{name} is {seconds}; it must be seconds above 0")
        if not 0 <= self.stream_every_s <= _MOST_EVERY_S:
            raise OptionError(
                f"stream_every_s is {self.stream_every_s}; it must lie in 0 to {_MOST_EVERY_S:g}"
            )
        if "*" in self.origins:
            raise OptionError(
                "an origin of * lets every page in; name the origins, such as "
                "https://chat.example.org"
            )

    @property
    def local(self) -> bool:
        """Only programs of this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False
