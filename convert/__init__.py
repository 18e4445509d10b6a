"""Published drafts to GGUF: one module a packaging, the same four steps each."""

from llamaspec.convert.recognise import Wishes
from llamaspec.convert.run import Job, Report, convert

__all__ = ["Job", "Report", "Wishes", "convert"]
