"""Runs of operators as one HTML page that needs no network: what they came to, and how."""

from __future__ import annotations

from kernelgen.report.glance import Glance, glances
from kernelgen.report.page import overview, page
from kernelgen.report.pictures import pictures
from kernelgen.report.story import Story, story

__all__ = ["Glance", "Story", "glances", "overview", "page", "pictures", "story"]
