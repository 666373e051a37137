"""Mounts a file system with one file, `disk`, whose reads take a known time: slow_file.py DIRECTORY BYTES MILLISECONDS...

The file is divided into as many equal parts as there are times; a read takes the time of the part it begins in. It has no cache, and
ends when it is unmounted. A loop device over the file is a disk of known latency.
"""
import ctypes
import errno
import os
import struct
import sys
import threading
import time

# Requests of /dev/fuse (linux/fuse.h).
LOOKUP, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT = 1, 3, 14, 15, 18, 25, 26
FORGET, BATCH_FORGET = 2, 42
ROOT, FILE = 1, 2
DIRECT_IO = 1
HOUR = 3600

where, size = sys.argv[1], int(sys.argv[2])
times = [float(text) / 1000 for text in sys.argv[3:]]


def attributes(node):
    mode, length = (0o100600, size) if node == FILE else (0o040700, 0)
    return struct.pack("<6Q10I", node, length, length // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def reply(opcode, node, body):
    """The negative error, and what follows it."""
    if opcode == INIT:
        return 0, struct.pack("<IIIIHHIIHHI28x", 7, 31, 0x20000, 0, 16, 12, 1 << 20, 1, 256, 0, 0)
    if opcode == LOOKUP:
        if body != b"disk\0":
            return -errno.ENOENT, b""
        return 0, struct.pack("<QQQQII", FILE, 0, HOUR, HOUR, 0, 0) + attributes(FILE)
    if opcode == GETATTR:
        return 0, struct.pack("<QII", HOUR, 0, 0) + attributes(node)
    if opcode == OPEN:
        return 0, struct.pack("<QII", 0, DIRECT_IO, 0)
    if opcode == READ:
        offset, count = struct.unpack_from("<8xQI", body)
        time.sleep(times[offset * len(times) // size])
        return 0, bytes(count)
    return (0, b"") if opcode in (RELEASE, FLUSH) else (-errno.ENOSYS, b"")


def serve(fuse):
    while True:
        try:
            message = os.read(fuse, 1 << 21)
            _, opcode, unique, node = struct.unpack_from("<IIQQ", message)
            if opcode in (FORGET, BATCH_FORGET):
                continue
            error, data = reply(opcode, node, message[40:])
            os.write(fuse, struct.pack("<IiQ", 16 + len(data), error, unique) + data)
        except OSError as gone:
            if gone.errno == errno.ENODEV:  # unmounted
                os._exit(0)
            if gone.errno not in (errno.ENOENT, errno.EINTR):  # the request was interrupted
                raise


libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0"
if libc.mount(b"slow_file", where.encode(), b"fuse.slow_file", 0, options.encode()):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
for _ in range(4):
    threading.Thread(target=serve, args=(fuse,)).start()
print("ready", flush=True)
