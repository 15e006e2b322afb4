# SPDX-License-Identifier: LGPL-2.1-or-later
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

# An installed kcovdbg has nothing beside it: what GDB sources, and what the demo has of the tests.
COPIED = {
    "gdb/kcov.py": "frontends/gdb_loader.py",
    "tests/lab/modules/kcovlab_keep.c": "demo/modules/kcovlab_keep.c",
    "tests/golden/generations/ext-records/slice.zst": "demo/calls/slice.zst",
    "tests/golden/generations/ext-records/vmlinux.zst": "demo/calls/vmlinux.zst",
}


class BuildWithCopies(build_py):
    """Puts files into the package that a checkout keeps elsewhere."""

    def run(self):
        super().run()
        if not self.editable_mode:
            for source, name in COPIED.items():
                target = Path(self.build_lib, "kcovdbg", name)
                target.parent.mkdir(parents=True, exist_ok=True)
                self.copy_file(source, str(target))


setup(
    cffi_modules=["native/build_native.py:ffibuilder"],
    cmdclass={"build_py": BuildWithCopies},
    # The demo is where one looks for examples, and a part of the package when that is installed.
    packages=[*find_packages(include=["kcovdbg*"]), "kcovdbg.demo"],
    package_dir={"kcovdbg.demo": "examples/demo"},
    package_data={
        "kcovdbg": ["py.typed", "*.pyi"],
        "kcovdbg.demo": ["*.zst"],
        "kcovdbg.render.report": ["*.css", "*.js"],
    },
)
