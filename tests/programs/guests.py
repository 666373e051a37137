"""Two virtual machines for docs/virtual-machines.md, each in a cgroup of its own: guests.py SECONDS

`web` computes, and shares its CPU with another process. `db` writes to a port all the time, and its process writes to a disk for each."""

import ctypes
import fcntl
import mmap
import os
import signal
import struct
import subprocess
import sys
import time

# include/uapi/linux/kvm.h
CREATE_VM, VCPU_MMAP_SIZE, CREATE_VCPU, SET_MEMORY, RUN = 0xAE01, 0xAE04, 0xAE41, 0x4020AE46, 0xAE80
SET_REGS, GET_SREGS, SET_SREGS = 0x4090AE82, 0x8138AE83, 0x4138AE84
# again: jmp again; and again: out dx, al; jmp again
COMPUTE, WRITE = b"\xeb\xfe", b"\xba\xf8\x03\xee\xeb\xfd"
MOUNTS = [path for path in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/blkio", "/sys/fs/cgroup") if os.path.exists(f"{path}/cgroup.procs")]


def guest(code):
    """Makes a virtual machine with this code; returns its virtual processor."""
    kvm = os.open("/dev/kvm", os.O_RDWR)
    vm = fcntl.ioctl(kvm, CREATE_VM, 0)
    memory = mmap.mmap(-1, 4096)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(vm, SET_MEMORY, struct.pack("IIQQQ", 0, 0, 0, 4096, address))
    vcpu = fcntl.ioctl(vm, CREATE_VCPU, 0)
    size = fcntl.ioctl(kvm, VCPU_MMAP_SIZE, 0)
    special = bytearray(312)
    fcntl.ioctl(vcpu, GET_SREGS, special)
    special[0:8], special[12:14] = bytes(8), bytes(2)  # base and selector of the code segment
    fcntl.ioctl(vcpu, SET_SREGS, special)
    fcntl.ioctl(vcpu, SET_REGS, bytearray(struct.pack("18Q", *[0] * 17, 2)))
    return vcpu, mmap.mmap(vcpu, size), memory


def web():
    os.sched_setaffinity(0, {0})
    vcpu, *_ = guest(COMPUTE)
    while True:
        fcntl.ioctl(vcpu, RUN, 0)


def db():
    vcpu, *_ = guest(WRITE)
    disk = os.open(sys.argv[4], os.O_RDWR | os.O_DIRECT)
    page = mmap.mmap(-1, 4096)
    while True:
        fcntl.ioctl(vcpu, RUN, 0)
        os.pwrite(disk, page, 0)


def start(role, *more):
    """Starts a guest as its machine manager does: by name, in a cgroup."""
    child = subprocess.Popen([sys.executable, __file__, role, "-name", f"guest={role}", *more])
    for mount in MOUNTS:
        cgroup = f"{mount}/machine-{role}"
        os.makedirs(cgroup, exist_ok=True)
        with open(f"{cgroup}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write(str(child.pid))
    return child


def main():
    """Runs both guests for a time, or until it is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    image = "/dev/shm/corebcc-guests"
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    disk = subprocess.run(["losetup", "--direct-io=off", "-f", "--show", image], check=True, capture_output=True, text=True).stdout.strip()
    hog = os.fork()
    if not hog:
        os.sched_setaffinity(0, {0})
        while True:
            pass
    children = [start("web"), start("db", disk)]
    try:
        time.sleep(float(sys.argv[1]))
    finally:
        for child in children:
            child.kill()
            child.wait()
        os.kill(hog, signal.SIGKILL)
        subprocess.run(["losetup", "-d", disk], check=True)
        os.unlink(image)
        for mount in MOUNTS:
            for role in ("web", "db"):
                os.rmdir(f"{mount}/machine-{role}")


if __name__ == "__main__":
    {"web": web, "db": db}.get(sys.argv[1], main)()
