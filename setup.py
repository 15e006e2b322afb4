# SPDX-License-Identifier: LGPL-2.1-or-later
from setuptools import setup

setup(cffi_modules=["native/build_native.py:ffibuilder"])
