"""Whether the tests run against a Kernel Hub build that `kernels.get_kernel` loaded, not the installed package."""

from __future__ import annotations

import pytest

import edge_ops

PACKAGED = edge_ops.__name__ != "edge_ops"

# A Hub build is imported by the kernels package, with whatever that one imports.
imported_by_itself = pytest.mark.skipif(PACKAGED, reason="a Kernel Hub build is imported by the kernels package")
