"""From the options of a completion to a request for the engine."""

import logging
import secrets
from functools import partial

import numpy as np

from llamaspec.draft.drafter import Dice
from llamaspec.engine.chances import Chances
from llamaspec.engine.ending import Ending
from llamaspec.engine.sequence import Request
from llamaspec.errors import OptionError
from llamaspec.loading import Pair
from llamaspec.options import MAX_SEED, GenerateOptions
from llamaspec.runtime.arrays import IntArray
from llamaspec.runtime.sampler import Sampler, needs_sampler
from llamaspec.text.detokenize import Pieces

logger = logging.getLogger("llamaspec")


class Requests:
    """Makes the requests of a loaded pair."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._table = Pieces(pair.model.vocab.piece)

    @property
    def draft_limit(self) -> int:
        """The most tokens that the draft proposes a round; 0 without a draft."""
        return self._pair.drafter.proposals if self._pair.drafter else 0

    def sampler(self, ids: IntArray, options: GenerateOptions) -> Sampler | None:
        """Who draws the tokens, None where the likeliest are taken. Raises OptionError for options
        that do not go with the pair.
        """
        model = self._pair.model
        if options.logprobs is not None and options.logprobs > model.vocab.size:
            raise OptionError(
                f"logprobs {options.logprobs} is more than the vocabulary of {model.vocab.size}"
            )
        if self._pair.options.exact and options.accept != "match":
            raise OptionError(
                f"exact gives the text that a seed gives without the draft, accept "
                f"{options.accept!r} another of the same distribution; choose one of them"
            )
        if not needs_sampler(options, model):
            return None
        seed = secrets.randbelow(MAX_SEED + 1) if options.seed is None else options.seed
        return Sampler.create(model, options, seed=seed, prompt=ids, n_ctx=self._pair.n_ctx)

    def request(
        self, ids: IntArray, options: GenerateOptions, sampler: Sampler | None, *, together: bool
    ) -> Request:
        """A request for a prompt [n] that fits the context. together: nobody waits for its single
        rounds.
        """
        pair = self._pair
        limit = min(options.max_tokens, pair.n_ctx - len(ids))
        ends = pair.model.vocab.ends
        drafts = self.draft_limit > 0 and options.draft_max != 0
        if sampler is not None and drafts and pair.engine.doubt:
            logger.warning(
                "exact: a draw depends on every bit of its row, and here passes over several rows "
                "are not bitwise those over one; with a temperature this decodes without the draft"
            )
        return Request(
            prompt=ids,
            limit=limit,
            draft_max=self._draft_max(options.draft_max),
            auto=_auto(options),
            ending=Ending(pieces=self._table, ends=ends, limit=limit, stop=options.stop),
            draw=None if sampler is None else partial(sampler.draw, pair.context),
            chances=None if sampler is None else self._chances(options, sampler),
            logprobs=options.logprobs,
            cache_prompt=options.cache_prompt,
            together=together,
            priority=options.priority,
        )

    def _chances(self, options: GenerateOptions, sampler: Sampler) -> Chances | None:
        if options.accept == "match" or options.temperature == 0 or options.draft_max == 0:
            return None
        # the sampler's own numbers stay apart from the draft's
        random = np.random.default_rng(None if options.seed is None else [options.seed, 1])
        return Chances(
            options.accept,
            Dice(options.temperature, random),
            partial(sampler.odds, self._pair.context),
            sampler.take,
        )

    def _draft_max(self, asked: int | None) -> int:
        limit = self.draft_limit
        if asked is None:
            return limit
        if asked > limit > 0:
            logger.warning(
                "draft_max %d is more than the draft's block gives; using %d", asked, limit
            )
        return min(asked, limit)


def _auto(options: GenerateOptions) -> bool:
    """Whether the pace chooses how much to draft. Not where a seed's text would then depend on how
    fast a machine is, or on what it has learnt from earlier requests.
    """
    free = options.accept == "match" or options.temperature == 0 or options.seed is None
    return options.draft_max is None and free
