# SPDX-License-Identifier: LGPL-2.1-or-later
"""What devices of posted series record of a task, for an object, or under a handle."""

from __future__ import annotations

from collections.abc import Iterator

from kcovdbg.abi.handle import decode_handle
from kcovdbg.model.device import DeviceSession
from kcovdbg.model.object_names import name_kcov, name_task
from kcovdbg.model.session import Role
from kcovdbg.model.state import State
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
    where = "inside a remote section" if session.role is Role.REMOTE_SECTION else "for itself"
    whose = "" if not session.kcov else f" for {name_kcov(session.kcov, session.device)}"
    values = {"area": session.area, "size": session.size, "count": session.count, "sequence": session.sequence}
    named = {"kcov": session.kcov, "device": session.device}
    if session.enabled is False:
        return Answer(
            Reason.DEVICE_DISABLED, f"{session.device} does not record it now, {where}{whose}: it is not enabled", values, named
        )
    if session.full:
        return Answer(
            Reason.DEVICE_FULL, f"{session.device} records it {where}{whose}, but no record fits into the buffer", values, named
        )
    return Answer(Reason.DEVICE_RECORDS, f"{session.device} records it {where}{whose}", values, named)


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
            whom = f"the task at {fields.task:#x}, which is on no list" if owner is None else name_task(owner)
            yield Answer(Reason.DEVICE_RECORDS, f"{name} is enabled for {whom}", {**values, "t": fields.task}, named)
        if handle:
            answer = f"{name} collects from sections under {decode_handle(handle)}, each when it ends"
            yield Answer(Reason.DEVICE_RECORDS, answer, {**values, "handle": handle}, named)
        if not fields.task and not handle:
            step = "enabled" if fields.area else "initialized"
            yield Answer(Reason.DEVICE_DISABLED, f"{name} records nothing: it is not {step}", values, named)
        if kcov.full:
            yield Answer(Reason.DEVICE_FULL, f"no record fits into the buffer of {name}", values, named)


def explain_device_handle(state: State, handle: int) -> Iterator[Answer]:
    """Yield the devices that a handle is registered with."""
    for device in state.devices:
        for entry in device.handles:
            if entry.handle == handle and entry.kcov:
                answer = f"{decode_handle(handle)} is registered with {device.name}, for {name_kcov(entry.kcov, device.name)}"
                named: Values = {"kcov": entry.kcov, "device": device.name}
                yield Answer(Reason.DEVICE_RECORDS, answer, {"handle": handle, "bucket": entry.bucket}, named)
