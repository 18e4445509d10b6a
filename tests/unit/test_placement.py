"""Where target and draft may compute, over machines of several devices that nobody here has."""

import pytest

from llamaspec.errors import IncompatibleDraftError, OptionError
from llamaspec.options import LoadOptions, SplitMode
from llamaspec.runtime.backend import Device
from llamaspec.runtime.placement import Placement, check_placement, place, place_draft

CPU = Device("CPU", "a processor", "cpu", 1, 1)
ONE = Device("CUDA0", "a card", "gpu", 1, 1)
TWO = Device("CUDA1", "another", "gpu", 1, 1)
FAR = Device("RPC0", "host:1", "remote", 1, 1)
FARTHER = Device("RPC1", "host:2", "remote", 1, 1)
LOCAL = [CPU, ONE, TWO]


def test_names_choose_devices() -> None:
    assert place(None, -1, "layer", LOCAL) == Placement(-1, (), "layer")
    assert place("CUDA1", 20, "none", LOCAL) == Placement(20, ("CUDA1",), "none")
    assert place(" CUDA1 , CUDA0", -1, "row", LOCAL).devices == ("CUDA1", "CUDA0")
    assert place("CPU", -1, "layer", LOCAL) == Placement(0, (), "layer")


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("CUDA7", ("'CUDA7'", "CUDA0, CUDA1, cpu")),
        ("cuda0", ("'cuda0'", "CUDA0")),
        ("CUDA0,,CUDA1", ("''",)),
        ("cpu,CUDA0", ("alone",)),
        ("CUDA0,CUDA0", ("twice",)),
    ],
)
def test_names_that_choose_none(names: str, says: tuple[str, ...]) -> None:
    with pytest.raises(OptionError) as refused:
        place(names, -1, "layer", LOCAL)
    assert all(word in str(refused.value) for word in says)


def on(*names: str, mode: SplitMode = "layer") -> Placement:
    return Placement(-1, names, mode)


def far(head: str, *names: str) -> Placement:
    return Placement(-1, names, "layer", head, ("host:1",))


NOWHERE = Placement(0)


@pytest.mark.parametrize(
    ("target", "draft", "own", "there"),
    [
        (on(), on(), False, [CPU]),
        (on(), on(), False, LOCAL),
        (on(mode="row"), on(), False, [CPU, ONE]),
        (on("CUDA0"), on("CUDA0"), False, LOCAL),
        (on("CUDA0", "CUDA1"), on("CUDA1"), False, LOCAL),
        (on(), NOWHERE, False, LOCAL),
        (NOWHERE, on(), False, LOCAL),
        (on("CUDA0"), on("CUDA1"), True, LOCAL),
        (on("CUDA0", "CUDA1", mode="row"), on("CUDA1"), True, LOCAL),
        (on("CUDA0", "CUDA1", mode="tensor"), NOWHERE, True, LOCAL),
        (on("CUDA0"), on("CUDA0"), False, [*LOCAL, FAR]),
        (on(), on(), True, [*LOCAL, FAR]),
        (far("cpu", "RPC0"), NOWHERE, False, [CPU, FAR]),
        (far("CUDA0", "RPC0", "CUDA0"), on("CUDA0"), False, [CPU, ONE, FAR]),
        (far("cpu", "RPC0"), on("CUDA0"), True, [CPU, ONE, FAR]),
    ],
)
def test_what_can_run(target: Placement, draft: Placement, own: bool, there: list[Device]) -> None:
    check_placement(target, draft, own, there)


@pytest.mark.parametrize(
    ("target", "draft", "own", "there", "says"),
    [
        (on(mode="row"), on(), False, LOCAL, ("split mode row", "--standalone")),
        (on(mode="tensor"), on(), False, LOCAL, ("split mode tensor", "layer")),
        (on(mode="tensor"), on("CUDA1"), True, LOCAL, ("CUDA0, CUDA1", "--device-draft")),
        (on("CUDA0"), on("CUDA1"), False, LOCAL, ("CUDA1", "CUDA0", "-ngld 0")),
        (on("CUDA0"), on("RPC0"), True, [*LOCAL, FAR], ("RPC0", "host:1", "--device-draft")),
        (far("cpu", "RPC0"), on("RPC0"), True, [CPU, FAR], ("RPC0", "host:1")),
        (far("cpu", "RPC0"), on("CUDA0"), False, [CPU, ONE, FAR], ("CUDA0", "cpu", "--standalone")),
    ],
)
def test_what_cannot(
    target: Placement,
    draft: Placement,
    own: bool,
    there: list[Device],
    says: tuple[str, ...],
) -> None:
    with pytest.raises(IncompatibleDraftError) as refused:
        check_placement(target, draft, own, there)
    assert all(word in str(refused.value) for word in says)
    assert "\n" not in str(refused.value)


def test_servers_get_layers_and_embedding_and_head_stay_here() -> None:
    only = place(None, -1, "layer", [FAR, FARTHER, CPU])
    assert only == Placement(-1, ("RPC0", "RPC1"), "layer", "cpu", ("host:1", "host:2"))
    both = place(None, -1, "layer", [FAR, *LOCAL])
    assert both == Placement(-1, ("RPC0", "CUDA0", "CUDA1"), "layer", "CUDA1", ("host:1",))
    named = place("RPC1", 20, "layer", [FAR, FARTHER, *LOCAL])
    assert named == Placement(20, ("RPC1",), "layer", "cpu", ("host:2",))


def test_a_draft_never_goes_to_a_server_by_itself() -> None:
    only = place(None, -1, "layer", [FAR, CPU])
    assert place_draft(None, -1, only, [FAR, CPU]).on_cpu
    both = place(None, -1, "layer", [FAR, *LOCAL])
    assert place_draft(None, -1, both, [FAR, *LOCAL]).devices == ("CUDA0", "CUDA1")
    assert place_draft("CUDA1", -1, both, [FAR, *LOCAL]).devices == ("CUDA1",)
    assert place_draft(None, -1, Placement(), LOCAL) == Placement()
    assert place_draft(None, -1, on("CUDA1"), LOCAL).devices == ("CUDA1",)


@pytest.mark.parametrize("setting", [{"device": ""}, {"device_draft": 3}, {"split_mode": "odd"}])
def test_options_that_are_no_placement(setting: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(setting))):
        LoadOptions(**setting)  # type: ignore[arg-type]
