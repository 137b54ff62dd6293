"""A language model that writes candidates: prompt, client, replies in the journal before they are used, caps."""

from __future__ import annotations

from kernelgen.llm.author import Author
from kernelgen.llm.client import Client, Endpoint, Reply, Unanswered
from kernelgen.llm.ledger import Caps, Prices, Spent, spent

__all__ = ["Author", "Caps", "Client", "Endpoint", "Prices", "Reply", "Spent", "Unanswered", "spent"]
