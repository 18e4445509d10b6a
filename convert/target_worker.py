"""Runs llama.cpp's converter without letting it run code that a checkpoint brings.

A script of its own: the interpreter is one that has torch and may have no llamaspec. Arguments: the
llama.cpp tree, the file to write, and the converter's own. When stdin ends, nobody waits any more.
"""

import os
import sys

# neither this folder nor the working directory may shadow a library
sys.path[:] = [p for p in sys.path if p and p != os.path.dirname(__file__)]  # noqa: PTH120

import importlib  # noqa: E402
import runpy  # noqa: E402
import threading  # noqa: E402
from typing import Any, NoReturn  # noqa: E402


def main() -> None:
    """Convert, with the process's own arguments."""
    tree, output, *arguments = sys.argv[1:]
    threading.Thread(target=_until_abandoned, args=(output,), daemon=True).start()
    _trust_no_code()
    script = os.path.join(tree, "convert_hf_to_gguf.py")  # noqa: PTH118
    sys.argv = [script, *arguments]
    sys.path.insert(0, tree)
    runpy.run_path(script, run_name="__main__")


def _trust_no_code() -> None:
    # the converter asks for trust in many places; transformers resolves each in this one module,
    # from which its others take these names when they are imported later
    module: Any = importlib.import_module("transformers.dynamic_module_utils")
    try:
        resolve = module.resolve_trust_remote_code
        module.get_class_in_module  # noqa: B018
    except AttributeError:
        raise SystemExit(
            "RuntimeError: llamaspec does not know this version of transformers and cannot keep "
            "it from running a checkpoint's code; install another"
        ) from None

    def distrust(trust_remote_code: object = None, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401
        return resolve(False, *args, **kwargs)

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise ValueError("trust_remote_code is refused: the checkpoint's own code does not run")

    module.resolve_trust_remote_code = distrust
    module.get_class_in_module = refuse


def _until_abandoned(output: str) -> None:
    while os.read(0, 1):
        pass
    if os.path.exists(output):  # noqa: PTH110
        os.unlink(output)  # noqa: PTH108
    os._exit(1)


if __name__ == "__main__":
    main()
