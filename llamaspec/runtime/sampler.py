"""llama.cpp's sampler chain for temperatures above zero."""

from typing import Self

from llamaspec.ffi import lib
from llamaspec.runtime.context import Context
from llamaspec.runtime.handle import NativeHandle


class Sampler(NativeHandle):
    """Temperature, then one draw from the whole distribution; its random state advances once a
    draw.
    """

    @classmethod
    def create(cls, *, temperature: float, seed: int) -> Self:
        params = lib.llama_sampler_chain_default_params()
        params.no_perf = True
        chain = lib.llama_sampler_chain_init(params)
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_temp(temperature))
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_dist(seed))
        return cls(chain, lib.llama_sampler_free)

    def draw(self, context: Context, row: int) -> int:
        """Draw a token from the output row of batch row `row` of the last decode."""
        return int(lib.llama_sampler_sample(self.ptr, context.ptr, row))
