"""One module a packaging; `PACKAGINGS` in the order in which they are asked."""

from llamaspec.convert.formats import (
    deepseek4,
    deepspec,
    dflash2,
    gemma4,
    lfm2,
    specforge,
    speculators,
    zlab,
)
from llamaspec.convert.plan import Packaging

# a more particular schema comes before a more general one
PACKAGINGS: tuple[Packaging, ...] = (
    deepseek4.PACKAGING,
    speculators.PACKAGING,
    gemma4.PACKAGING,
    lfm2.PACKAGING,
    dflash2.PACKAGING,
    specforge.PACKAGING,
    zlab.PACKAGING,
    deepspec.PACKAGING,
)
