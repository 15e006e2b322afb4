# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about coverage that devices of posted series record."""

from __future__ import annotations

from collections.abc import Iterator

from kcovdbg.abi.handle import decode_handle
from kcovdbg.model.device import DeviceSession
from kcovdbg.model.kcov import name_kcov, name_task
from kcovdbg.model.state import Part, State
from kcovdbg.model.task import Role
from kcovdbg.why.missing_coverage import Answer, Reason, Values


def explain_device_task(state: State, task: int) -> Iterator[Answer]:
    """Yield what devices record of a task.

    :param task: ``struct task_struct *``.
    """
    for device in state.devices:
        for session in device.sessions:
            if session.task == task:
                yield _explain_session(session)


def _explain_session(session: DeviceSession) -> Answer:
    where = "for itself"
    if session.role is Role.REMOTE_SECTION:
        where = "inside a remote section"
    if session.kcov:
        where += f" for {name_kcov(session.kcov, session.device)}"
    code: Reason = "device-records"
    answer = f"{session.device} records it {where}"
    if session.enabled is False:
        code = "device-disabled"
        answer = f"{session.device} does not record it now, {where}: it is not enabled"
    elif session.full:
        code = "device-full"
        answer += ", but no record fits into the buffer"
    values = {
        "area": session.area,
        "size": session.size,
        "count": session.count,
        "sequence": session.sequence,
    }
    return Answer(code, answer, values, {"kcov": session.kcov, "device": session.device})


def explain_device_object(state: State, address: int) -> Iterator[Answer]:
    """Yield what an object of a device collects."""
    for device in state.devices:
        kcov = device.objects.get(address)
        if kcov is None or kcov.fields is None:
            continue
        name, fields = name_kcov(address, device.name), kcov.fields
        values: Values = {"area": fields.area, "size": fields.size, "count": kcov.count}
        handle = device.published.get(address)
        named: Values = {"kcov": address, "device": device.name}
        if fields.task:
            owner = state.task_by_address.get(fields.task)
            absent = f"the task at {fields.task:#x}, which is on no list"
            whom = state.say_absent(absent, Part.TASKS) if owner is None else name_task(owner)
            yield Answer(
                "device-records",
                f"{name} is enabled for {whom}",
                {**values, "t": fields.task},
                named,
            )
        if handle:
            answer = (
                f"{name} collects from sections under {decode_handle(handle)}, each when it ends"
            )
            yield Answer("device-records", answer, {**values, "handle": handle}, named)
        if not fields.task and not handle:
            step = "enabled" if fields.area else "initialized"
            yield Answer(
                "device-disabled", f"{name} records nothing: it is not {step}", values, named
            )
        if kcov.full:
            yield Answer("device-full", f"no record fits into the buffer of {name}", values, named)


def explain_device_handle(state: State, handle: int) -> Iterator[Answer]:
    """Yield the devices that a handle is registered with."""
    for device in state.devices:
        for entry in device.handles:
            if entry.handle == handle and entry.kcov:
                answer = (
                    f"{decode_handle(handle)} is registered with {device.name}, for "
                    f"{name_kcov(entry.kcov, device.name)}"
                )
                named: Values = {"kcov": entry.kcov, "device": device.name}
                yield Answer(
                    "device-records", answer, {"handle": handle, "bucket": entry.bucket}, named
                )
