"""Where target and draft are to compute; what llama.cpp cannot do of it is said before loading."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llamaspec.errors import IncompatibleDraftError, OptionError
from llamaspec.options import SplitMode
from llamaspec.runtime.backend import Device

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model computes.

    Attributes:
        n_gpu_layers: layers off the CPU, negative for all.
        devices: names of the devices that may be used, () for all there are.
        split_mode: how a model is divided among several.
        head: the local device, or "cpu", that embedding and head stay on, whatever the rest does.
        servers: addresses of the RPC servers that have part of it.
    """

    n_gpu_layers: int = -1
    devices: tuple[str, ...] = ()
    split_mode: SplitMode = "layer"
    head: str | None = None
    servers: tuple[str, ...] = ()

    @property
    def on_cpu(self) -> bool:
        """Nothing is to leave the CPU."""
        return self.n_gpu_layers == 0


def place(
    names: str | None, n_gpu_layers: int, split_mode: SplitMode, there: Sequence[Device]
) -> Placement:
    """A placement by the names that a user gives, separated by commas; "cpu" stands alone.

    Raises:
        OptionError: there is no such device, or the CPU is to share a model with others.
    """
    remote = [device for device in there if device.is_remote]
    if names is None:
        used = [*remote, *(device for device in there if device.is_gpu)] if remote else []
        return _with_servers(n_gpu_layers, used, split_mode)
    wanted = [name.strip() for name in names.split(",")]
    if CPU in (name.lower() for name in wanted):
        if len(wanted) > 1:
            raise OptionError(
                f"device {names!r}: layers beyond -ngl are on the CPU anyway; name it alone or not "
                "at all"
            )
        return Placement(0, (), split_mode)
    known = {device.name for device in there if device.kind != "cpu"}
    for name in wanted:
        if name not in known:
            listed = ", ".join([*sorted(known), CPU])
            raise OptionError(f"there is no device {name!r}; there are {listed}")
    if len(set(wanted)) < len(wanted):
        raise OptionError(f"device {names!r} names one device twice")
    named = [device for name in wanted for device in there if device.name == name]
    return _with_servers(n_gpu_layers, named, split_mode)


def _with_servers(n_gpu_layers: int, used: list[Device], split_mode: SplitMode) -> Placement:
    """On the devices `used`. With servers among them embedding and head stay here: a draft reads
    them, and logits are many times larger than what the head is computed from.
    """
    names = tuple(device.name for device in used)
    servers = tuple(dict.fromkeys(device.description for device in used if device.is_remote))
    local = [device.name for device in used if not device.is_remote]
    head = (local[-1] if local else CPU) if servers else None
    return Placement(n_gpu_layers, names, split_mode, head, servers)


def place_draft(
    names: str | None, n_gpu_layers: int, target: Placement, there: Sequence[Device]
) -> Placement:
    """A draft's placement. Without a wish it goes where its target is, but never to a server.

    Raises:
        OptionError: as `place`.
    """
    local = [device for device in there if not device.is_remote]
    draft = place(names, n_gpu_layers, "layer", there if names else local)
    if names is not None or draft.on_cpu or not target.devices:
        return draft
    shared = tuple(device.name for device in local if device.name in target.devices)
    return replace(draft, devices=shared) if shared else Placement(0)


def stays_on_cpu(placement: Placement, there: Sequence[Device]) -> bool:
    """Whether nothing of it goes to another device of those there are."""
    return not _used(placement, there)


def check_placement(
    target: Placement, draft: Placement, own_tables: bool, there: Sequence[Device]
) -> None:
    """Refuse what ends the process in llama.cpp, or corrupts drafts.

    Args:
        target, draft: where they are to be.
        own_tables: the draft has an embedding and a head of its own.
        there: the devices of this machine.

    Raises:
        IncompatibleDraftError: with the way out.
    """
    used, drafting = (_used(placement, there) for placement in (target, draft))
    remote = {device.name: device.description for device in there if device.is_remote}
    if far := sorted(drafting & remote.keys()):
        raise IncompatibleDraftError(
            f"{far[0]} is a device of the RPC server {remote[far[0]]}, on which llama.cpp does not "
            "run block drafts; give the draft a local device (--device-draft) or cpu"
        )
    if target.servers:
        _check_head(target, drafting, own_tables)
        return
    if target.split_mode in ("row", "tensor") and len(used) > 1 and not own_tables:
        raise IncompatibleDraftError(
            f"the target's head is split among {len(used)} devices (split mode "
            f"{target.split_mode}), and the draft would read it there, which llama.cpp cannot; use "
            "split mode layer, or convert the draft with --standalone and give it a device of its "
            "own"
        )
    if target.split_mode == "tensor" and used & drafting and len(used) > 1:
        raise IncompatibleDraftError(
            f"the target is split by tensors over {', '.join(sorted(used))}, and the draft is to "
            "use one of them, which llama.cpp cannot; give the draft another (--device-draft)"
        )
    apart = used and drafting and not drafting <= used
    if apart and not own_tables:
        raise IncompatibleDraftError(
            f"the draft is to compute on {', '.join(sorted(drafting))} and reads embedding and "
            f"head of the target, which is on {', '.join(sorted(used))}; place it there or on the "
            "CPU (-ngld 0), or convert it with --standalone"
        )


def _check_head(target: Placement, drafting: set[str], own_tables: bool) -> None:
    apart = sorted(drafting - {target.head})
    if apart and not own_tables:
        raise IncompatibleDraftError(
            f"the draft is to compute on {apart[0]} and reads embedding and head of the target, "
            f"which stay on {target.head} while RPC servers have its layers; place the draft there "
            "(--device-draft), or convert it with --standalone"
        )


def _used(placement: Placement, there: Sequence[Device]) -> set[str]:
    if placement.on_cpu:
        return set()
    return set(placement.devices) or {device.name for device in there if device.is_gpu}
