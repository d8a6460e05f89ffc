"""TensorBoard's event files, read as TensorBoard shows them, without the library's own reader."""

import struct

from tensorboardX.proto.event_pb2 import Event, SessionLog


def read_values(folder):
    """{tag: {samples seen: [values]}}, each the protocol's `Summary.Value`.

    Files in the order of their names; at a START mark the points at and beyond its step are void.
    """
    shown = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in _events(path.read_bytes()):
            if event.session_log.status == SessionLog.START:
                for points in shown.values():
                    for step in [step for step in points if step >= event.step]:
                        del points[step]
            for value in event.summary.value:
                shown.setdefault(value.tag, {}).setdefault(event.step, []).append(value)
    return shown


def _events(content):
    """Of one file, up to where a killed process left it."""
    while len(content) >= 12:
        (length,) = struct.unpack("<Q", content[:8])
        if len(content) < 16 + length:
            return
        yield Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]


def read_numbers(folder):
    """{tag: {samples seen: [numbers]}}."""
    return {
        tag: {step: [value.simple_value for value in values] for step, values in points.items()}
        for tag, points in read_values(folder).items()
    }
