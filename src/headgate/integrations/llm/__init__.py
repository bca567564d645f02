"""Limits for calls to language models: tokens are reserved before a call and settled after it."""

from headgate.integrations.llm.limiter import LlmLimiter
from headgate.integrations.llm.sync import SyncLlmLimiter

__all__ = ["LlmLimiter", "SyncLlmLimiter"]
