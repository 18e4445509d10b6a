"""Addresses of RPC servers, and what they cannot be given together with."""

import pytest

from llamaspec.endpoints import Endpoint, endpoints
from llamaspec.errors import OptionError
from llamaspec.options import LoadOptions


def test_a_list_of_addresses() -> None:
    found = endpoints("rpc", "10.0.0.2:50052, node-2.lan:1")
    assert found == (Endpoint("10.0.0.2", 50052), Endpoint("node-2.lan", 1))
    assert [str(each) for each in found] == ["10.0.0.2:50052", "node-2.lan:1"]
    assert LoadOptions(rpc="a:1,b:2").servers == (Endpoint("a", 1), Endpoint("b", 2))
    assert LoadOptions().servers == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "HOST:PORT"),
        ("host", "HOST:PORT"),
        (":50052", "HOST:PORT"),
        ("host:", "HOST:PORT"),
        ("host:fifty", "HOST:PORT"),
        ("host:-1", "HOST:PORT"),
        ("host:\u0661", "HOST:PORT"),
        ("-host:1", "HOST:PORT"),
        ("a b:1", "HOST:PORT"),
        ("host\0:1", "HOST:PORT"),
        ("a:1,", "HOST:PORT"),
        ("host:0", "1 to 65535"),
        ("host:65536", "1 to 65535"),
        ("host:" + "9" * 6000, "1 to 65535"),
        ("[::1]:50052", "IPv4"),
        ("::1:50052", "IPv4"),
        ("fe80::1", "IPv4"),
        ("a:1,b:2,a:1", "a:1 twice"),
        (",".join(f"h:{n}" for n in range(1, 17)), "16 servers"),
        (50052, "50052"),
    ],
)
def test_what_is_no_address(text: str, says: str) -> None:
    with pytest.raises(OptionError) as refused:
        LoadOptions(rpc=text)
    assert says in str(refused.value)
    assert "rpc" in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"n_gpu_layers": 0}, "n_gpu_layers is 0"),
        ({"device": "cpu"}, "device is cpu"),
        ({"split_mode": "row"}, "split_mode is row"),
        ({"split_mode": "tensor"}, "split_mode is tensor"),
    ],
)
def test_what_leaves_nothing_to_servers(setting: dict[str, object], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        LoadOptions(rpc="host:1", **setting)  # type: ignore[arg-type]
