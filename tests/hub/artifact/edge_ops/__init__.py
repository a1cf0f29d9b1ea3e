"""Stands in for the package where the tests run against a built Kernel Hub layout.

    LOCAL_KERNELS=edge-ops/edge-ops=$PWD/dist/hub PYTHONPATH=$PWD/tests/hub/artifact python -m pytest

`import edge_ops` then loads the build that `kernels.get_kernel` finds, here and in the processes that tests start, and
`edge_ops.anything` is that build's own module, not a second copy of it.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from pathlib import Path

from kernels import get_kernel
from kernels.compat import tomllib

_GENERAL = tomllib.loads((Path(__file__).parents[4] / "build.toml").read_text())["general"]
_KERNEL = get_kernel(_GENERAL["hub"]["repo-id"], version=_GENERAL["version"])
_ALIAS = __name__


def _real(name):
    return _KERNEL.__name__ + name[len(_ALIAS) :]


class _Aliases(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds `edge_ops.x` as the loaded build's own x."""

    def find_spec(self, name, path=None, target=None):
        if not name.startswith(_ALIAS + "."):
            return None
        real = importlib.util.find_spec(_real(name))
        if real is None:
            return None
        spec = importlib.util.spec_from_loader(name, self, is_package=real.submodule_search_locations is not None)
        spec.origin = real.origin
        return spec

    def create_module(self, spec):
        return importlib.import_module(_real(spec.name))

    def exec_module(self, module):
        # the import system has given the module the alias's specification
        module.__spec__ = importlib.util.spec_from_file_location(
            module.__name__, module.__file__, submodule_search_locations=getattr(module, "__path__", None)
        )

    def get_source(self, name):
        return importlib.util.find_spec(_real(name)).loader.get_source(_real(name))


sys.meta_path.insert(0, _Aliases())
sys.modules[__name__] = _KERNEL
