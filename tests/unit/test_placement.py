"""Where target and draft may compute, over machines of several devices that nobody here has."""

import pytest

from llamaspec.errors import IncompatibleDraftError, OptionError
from llamaspec.options import LoadOptions, SplitMode
from llamaspec.runtime.backend import Device
from llamaspec.runtime.placement import Placement, check_placement, place

CPU = Device("CPU", "a processor", "cpu", 1, 1)
ONE = Device("CUDA0", "a card", "gpu", 1, 1)
TWO = Device("CUDA1", "another", "gpu", 1, 1)
FAR = Device("RPC0[host:1]", "another machine's", "gpu", 1, 1)
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
        (on(), on(), True, [*LOCAL, FAR], ("RPC0[host:1]", "--device")),
        (on("CUDA0"), on(FAR.name), True, [*LOCAL, FAR], ("remote",)),
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


@pytest.mark.parametrize("setting", [{"device": ""}, {"device_draft": 3}, {"split_mode": "odd"}])
def test_options_that_are_no_placement(setting: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(setting))):
        LoadOptions(**setting)  # type: ignore[arg-type]
