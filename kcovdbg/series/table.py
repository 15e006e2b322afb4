# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of posted series, and the modes and formats of mainline and all series together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kcovdbg.abi.generations import ERAS, Era
from kcovdbg.abi.mode import MODES, Mode
from kcovdbg.abi.record import CMP, PC, Codec
from kcovdbg.model.remote import USER_ALLOCATORS
from kcovdbg.series import (
    draft_2016,
    kcov_dataflow,
    kcov_paused,
    trace_pc_ext,
    unique_enable,
    unique_maps,
)
from kcovdbg.series.declaration import (
    Device,
    ModeFlag,
    ObjectField,
    RecordLimit,
    SecondBuffer,
    Series,
    Variant,
)
from kcovdbg.target.target import Target

SERIES: tuple[Series, ...] = (
    unique_maps.SERIES,
    unique_enable.SERIES,
    trace_pc_ext.SERIES,
    kcov_dataflow.SERIES,
    kcov_paused.SERIES,
    draft_2016.SERIES,
)


def detect_series(
    target: Target, enumerators: Collection[str]
) -> tuple[tuple[Series, Variant], ...]:
    """Return the series that a kernel has, each with its form.

    :param enumerators: the enumerators of ``enum kcov_mode``.
    """
    found = ((series, series.detect(target, enumerators)) for series in SERIES)
    return tuple((series, variant) for series, variant in found if variant is not None)


def series_of(features: Collection[str]) -> Iterator[Series]:
    """Iterate over the series of a kernel with these features."""
    return (series for series in SERIES if series.feature in features)


def user_allocators() -> frozenset[str]:
    """Return the functions that allocate buffers of objects, in any kernel."""
    return frozenset(USER_ALLOCATORS).union(*(series.allocators for series in SERIES))


def object_fields() -> tuple[ObjectField, ...]:
    """Return the fields that any series adds to objects."""
    return tuple(field for series in SERIES for field in series.object_fields)


def devices() -> tuple[Device, ...]:
    """Return all forms of the devices of all series."""
    return tuple(device for series in SERIES for device in series.devices)


def device_modes() -> Iterator[tuple[Device, Mode]]:
    """Iterate over the devices with which kcovdbg can collect, each with its mode."""
    for series in SERIES:
        for device in series.devices:
            for mode in series.modes:
                if mode.name == device.mode and mode.request is not None:
                    yield device, mode


def find_device(feature: str) -> Device:
    """Return the device of the kernels with a feature."""
    return next(device for device in devices() if device.feature == feature)


def eras() -> tuple[Era, ...]:
    """Return the table of generations, oldest first."""
    return (*(series.era for series in SERIES if series.era is not None), *ERAS)


def modes() -> tuple[Mode, ...]:
    """Return the modes of all kernels, mainline's first."""
    return (*MODES, *(mode for series in SERIES for mode in series.modes))


def codec_of_mode(mode: str | None, features: Collection[str]) -> Codec:
    """Return the format of the records in a kernel's mode, PC for an unknown mode.

    :param mode: name from ``enum kcov_mode`` without prefix.
    :param features: features of the kernel.
    """
    for series in series_of(features):
        if series.every_codec is not None:
            return series.every_codec
        for known in series.modes:
            if known.name == mode:
                return known.codec
    return next((known.codec for known in MODES if known.name == mode), PC)


def codec_of_trace(mode: str | None) -> Codec:
    """Return the format of the records in a trace file, PC for an unknown mode.

    :param mode: its name in the side file, with or without ``TRACE_``.
    """
    plain = (mode or "").removeprefix("TRACE_")
    for known in modes():
        if known.name.removeprefix("TRACE_") == plain:
            return known.codec
    return PC


def mode_of_codec(codec: Codec) -> str | None:
    """Return the mode in which user space collects records of this format, None if kcovdbg cannot
    collect them.
    """
    for known in modes():
        if known.codec == codec and known.request is not None:
            return known.name
    return None


def guessable_codecs(features: Collection[str] | None = None) -> tuple[Codec, ...]:
    """Return the formats of a buffer in an unknown mode, the likeliest first.

    :param features: features of the kernel; None for formats of all kernels.
    """
    found = [PC, CMP]
    possible: Iterable[Series] = SERIES
    if features is not None:
        possible = series_of(features)
    for series in possible:
        found += [mode.codec for mode in series.modes]
    return tuple(dict.fromkeys(found))


_INT_MAX: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Traits:
    """The changes that the posted series in a kernel make to mainline."""

    features: frozenset[str] = frozenset()
    series: tuple[Series, ...] = ()

    @property
    def has_prefix(self) -> bool:
        """Whether a prefix may come before a buffer's count, whose place only members show then."""
        return any(series.prefix_feature in self.features for series in self.series)

    @property
    def is_laid_out_by_mode(self) -> bool:
        """Whether the place of a buffer's count depends on the mode."""
        return any(series.layout_by_mode for series in self.series)

    @property
    def counts_mappings(self) -> bool:
        """Whether each mapping of a buffer holds a reference of its own."""
        return any(series.counts_mappings for series in self.series)

    @property
    def leaves_saved_state(self) -> bool:
        """Whether a CPU's saved mode and sequence stay when a session is restored."""
        return any(series.leaves_saved_state for series in self.series)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices besides KCOV's own."""
        return tuple(
            device
            for series in self.series
            for device in series.devices
            if device.feature in self.features
        )

    @property
    def second_buffer(self) -> SecondBuffer | None:
        """The second buffer of each object, None if an object has only one."""
        for series in self.series:
            if series.second_buffer is not None:
                return series.second_buffer
        return None

    @property
    def record_limit(self) -> RecordLimit | None:
        """The limit for records other than the size of the buffer, None if there is none."""
        for series in self.series:
            if series.record_limit is not None:
                return series.record_limit
        return None

    @property
    def flags(self) -> tuple[ModeFlag, ...]:
        """Flag bits of a task's mode word, of these series and of series that no types show."""
        known = (series for series in SERIES if series in self.series or not series.variants)
        return tuple(flag for series in known for flag in series.flags)

    @property
    def modes_by_member(self) -> Mapping[str, str]:
        """For the name of a mode, the name of the mode that it becomes if ``mode_flag`` is set."""
        found: dict[str, str] = {}
        for series in self.series:
            found |= series.modes_by_member
        return found

    def size_limit(self, word_size: int) -> int:
        """Return the largest size that KCOV_INIT_TRACE accepts, in words.

        :param word_size: bytes of a word of a buffer.
        """
        if any(series.size_in_words for series in self.series):
            return _INT_MAX
        return _INT_MAX // word_size

    def mode_values(self, enumerators: Mapping[str, int]) -> frozenset[int]:
        """Return the numbers of all modes and of their legal combinations.

        :param enumerators: ``enum kcov_mode``.
        """
        combined = (
            sum(enumerators.get(name, 0) for name in names)
            for series in self.series
            for names in series.combined_modes
        )
        return frozenset((0, *enumerators.values(), *combined))


def traits_of(features: Collection[str]) -> Traits:
    """Return the traits of a kernel with these features."""
    return Traits(frozenset(features), tuple(series_of(features)))
