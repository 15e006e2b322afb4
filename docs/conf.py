# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sphinx's configuration: ``sphinx-build -W docs build/docs``."""

from importlib.metadata import version as find_version

project = "kcovdbg"
author = "the kcovdbg developers"
version = release = find_version("kcovdbg")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx"]
# Links to other projects' pages are made where somebody asks for them: a build needs no network.
intersphinx_mapping: dict[str, tuple[str, None]] = {}
source_suffix = {".md": "markdown"}
exclude_patterns = ["generate", "completions", "man"]
# For its dark mode, and for pages that fit a phone.
html_theme = "furo"
html_title = "kcovdbg"
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
nitpicky = False
