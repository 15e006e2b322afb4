# SPDX-License-Identifier: LGPL-2.1-or-later
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

# An installed kcovdbg has nothing beside it: what the demo has of the tests.
COPIED = {
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
    # The demo is where one looks for examples, what GDB sources is in gdb/, and both are parts of
    # an installed package.
    packages=[
        *find_packages(include=["kcovdbg*"]),
        "kcovdbg.demo",
        "kcovdbg.gdb",
        "kcovdbg.gdb.kcov_show",
    ],
    package_dir={"kcovdbg.demo": "examples/demo", "kcovdbg.gdb": "gdb"},
    package_data={
        "kcovdbg": ["py.typed", "*.pyi"],
        "kcovdbg.abi": ["*.ini"],
        "kcovdbg.records": ["*.ini"],
        "kcovdbg.demo": ["*.zst"],
        "kcovdbg.gdb.kcov_show": ["*.json"],
        "kcovdbg.console": ["*.css", "*.js"],
    },
)
