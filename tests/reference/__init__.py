"""The drafts of the published methods in NumPy, read from checkpoints: what every native path and
every converted file is checked against.

Nothing here knows llama.cpp or GGUF. Weights, activations and sums are float32 (RoPE's angles
float64). Shapes: n context rows, L rows of a block, d width, V target and Vd draft vocabulary.

Read in this order: `layers`, `backbone`, `heads`, `draft`, then what differs by packaging:
`packaging`, `rope`, `deepseek4`.
"""

from tests.reference.draft import Block, Draft
from tests.reference.packaging import load

__all__ = ["Block", "Draft", "load"]
