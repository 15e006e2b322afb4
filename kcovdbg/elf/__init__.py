# SPDX-License-Identifier: LGPL-2.1-or-later
"""The reader of ELF files: :class:`~kcovdbg.elf.file.ElfFile` and what it returns.

64- and 32-bit files of either byte order; standard library only. Names are those of elf(5).
"""
