# SPDX-License-Identifier: LGPL-2.1-or-later
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py


class BuildWithLoader(build_py):
    """Puts the file that GDB sources into the package: an installed kcovdbg has no gdb/ beside it."""

    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_file("gdb/kcov.py", str(Path(self.build_lib, "kcovdbg/frontends/gdb_loader.py")))


setup(
    cffi_modules=["native/build_native.py:ffibuilder"],
    cmdclass={"build_py": BuildWithLoader},
    # The demo is where one looks for examples, and a part of the package when that is installed.
    packages=[*find_packages(include=["kcovdbg*"]), "kcovdbg.demo"],
    package_dir={"kcovdbg.demo": "examples/demo"},
    package_data={
        "kcovdbg": ["py.typed", "*.pyi"],
        "kcovdbg.demo": ["*.zst"],
        "kcovdbg.render.report": ["*.css", "*.js"],
    },
)
