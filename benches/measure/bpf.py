"""What the kernel says of BPF programs: bpf(2) itself, so that nothing but Python is needed."""

import ctypes
import os
import struct
from pathlib import Path

PROG_GET_NEXT_ID, PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD, BTF_GET_FD_BY_ID, TASK_FD_QUERY = 11, 13, 15, 19, 20
FD_TYPES = ("raw_tracepoint", "tracepoint", "kprobe", "kretprobe", "uprobe", "uretprobe")

LIBC = ctypes.CDLL(None, use_errno=True)
CALL = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
NAMES = {}


def bpf(command, attributes):
    """One call: what it returns, and the attributes as it leaves them."""
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = LIBC.syscall(CALL, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result, buffer.raw


def info(descriptor, size, prepared=b""):
    """What the kernel says of an object: bpf_prog_info or bpf_btf_info of the kernel's uapi/linux/bpf.h."""
    buffer = ctypes.create_string_buffer(prepared.ljust(size, b"\0"), size)
    bpf(OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", descriptor, size, ctypes.addressof(buffer)))
    return buffer.raw


def type_name(btf, wanted):
    """The name of a type in the BTF with this id."""
    descriptor, _ = bpf(BTF_GET_FD_BY_ID, struct.pack("=I", btf))
    try:
        (size,) = struct.unpack_from("=I", info(descriptor, 16), 8)
        data = ctypes.create_string_buffer(size)
        info(descriptor, 16, struct.pack("=QI", ctypes.addressof(data), size))
    finally:
        os.close(descriptor)
    header, types, _, strings, _ = struct.unpack_from("=5I", data.raw, 4)
    # what follows the twelve bytes of a type, by its kind: bytes, and bytes of each member
    after = {1: (4, 0), 3: (12, 0), 4: (0, 12), 5: (0, 12), 6: (0, 8), 13: (0, 8), 14: (4, 0), 15: (0, 12), 17: (4, 0), 19: (0, 12)}
    at = header + types
    for number in range(1, wanted + 1):
        name, kind, _ = struct.unpack_from("=3I", data.raw, at)
        if number == wanted:
            begin = header + strings + name
            return data.raw[begin : data.raw.index(b"\0", begin)].decode()
        fixed, each = after.get(kind >> 24 & 31, (0, 0))
        at += 12 + fixed + each * (kind & 0xFFFF)
    raise AssertionError("unreachable")


def name_of(ident, descriptor, said):
    """The whole name of a program, from its BTF: the kernel itself keeps 15 letters."""
    if ident not in NAMES:
        NAMES[ident] = said[64:80].rstrip(b"\0").decode()
        btf, record = struct.unpack_from("=2I", said, 128)
        if btf and record:
            first = ctypes.create_string_buffer(record)
            asked = bytearray(232)
            struct.pack_into("=IQI", asked, 132, record, ctypes.addressof(first), 1)
            info(descriptor, 232, bytes(asked))
            NAMES[ident] = type_name(btf, struct.unpack_from("=I", first.raw, 4)[0])
    return NAMES[ident]


def described():
    """All loaded programs: id, name, and bpf_prog_info."""
    ident = 0
    while True:
        try:
            ident = struct.unpack_from("=I", bpf(PROG_GET_NEXT_ID, struct.pack("=I", ident))[1], 4)[0]
            descriptor, _ = bpf(PROG_GET_FD_BY_ID, struct.pack("=I", ident))
        except FileNotFoundError:  # no more; or unloaded meanwhile, which ends the list only if it was the last
            try:
                bpf(PROG_GET_NEXT_ID, struct.pack("=I", ident))
                continue
            except FileNotFoundError:
                return
        try:
            said = info(descriptor, 232)
            yield ident, name_of(ident, descriptor, said), said
        finally:
            os.close(descriptor)


def programs():
    """All loaded programs: id to (name, runs, nanoseconds)."""
    return {ident: (name, *struct.unpack_from("=QQ", said, 192)[::-1]) for ident, name, said in described()}


def code_bytes():
    """Machine code of all loaded programs: id to bytes."""
    return {ident: struct.unpack_from("=I", said, 16)[0] for ident, _, said in described()}


def perf_events(pid):
    """The perf events of a process that have programs, and its raw tracepoints."""
    events = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        place = ctypes.create_string_buffer(4096)
        asked = struct.pack("=4IQ", pid, int(entry.name), 0, len(place), ctypes.addressof(place))
        try:
            _, said = bpf(TASK_FD_QUERY, asked)
        except OSError:
            continue  # a descriptor of another kind, or closed meanwhile
        prog, kind, offset, _ = struct.unpack_from("=IIQQ", said, 24)
        events.append({"prog_id": prog, "fd_type": FD_TYPES[kind], "filename": place.value.decode(), "offset": offset})
    return events
