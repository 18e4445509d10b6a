"""Models by name: targets and drafts on this machine, of the Hub, and of known pairs."""

from llamaspec.models.find import AUTO, Target, find_draft, find_pair, find_target

__all__ = ["AUTO", "Target", "find_draft", "find_pair", "find_target"]
