"""What makes the events of each module: a line of WORKLOADS per module is all that benches/events needs of a new one."""

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


def read_disk(folder):
    """Direct reads from the disk under the folder."""
    fio = ["fio", "--name=read", f"--filename={folder}/read", "--size=64m", "--rw=randread", "--bs=4k", "--direct=1"]
    fio += ["--ioengine=libaio", "--iodepth=4", "--number_ios=10000", "--randrepeat=1", "--norandommap"]
    subprocess.run(fio, check=True, stdout=subprocess.DEVNULL)


def files(folder):
    """A file made, read, synchronized and removed, in small steps, through the page cache."""
    block = b"x" * 4096
    for _ in range(20):
        with open(folder / "file", "wb", buffering=0) as file:
            for _ in range(200):
                file.write(block)
            os.fsync(file.fileno())
        with open(folder / "file", "rb", buffering=0) as file:
            while file.read(4096):
                pass
    (folder / "file").unlink()


def switch(folder):
    """Two pairs of threads that wake each other."""
    program = folder / "pingpong"
    if not program.exists():
        subprocess.run(["cc", "-O2", "-o", program, HERE / "pingpong.c"], check=True)
    subprocess.run([program, "4", "1"], check=True, stdout=subprocess.DEVNULL)


def spawn(_):
    """Processes that begin and end."""
    for _ in range(1000):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


def call(_):
    """System calls."""
    for _ in range(200_000):
        os.getppid()


def converse(_):
    """Short messages over one connection of the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            for _ in range(20_000):
                one.send(b"ping")
                other.recv(16)


def connect(_):
    """Short connections of the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(2000):
            with socket.create_connection(server.getsockname()):
                server.accept()[0].close()


def knock(_):
    """Connections to a full queue, which try again after a second."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        clients = [socket.socket() for _ in range(200)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        time.sleep(4)
        for client in clients:
            client.close()


def contend(_):
    """Threads that wait for one lock of the kernel: that of a folder in which all of them make files."""
    folder = Path("/dev/shm") / f"contend-{os.getpid()}"
    folder.mkdir()

    def work(name):
        for _ in range(2000):
            (folder / name).touch()
            (folder / name).unlink()

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder.rmdir()


WORKLOADS = {
    "biolatency": read_disk,
    "bioperpid": read_disk,
    "biotop": read_disk,
    "cachestat": files,
    "execsnoop": spawn,
    "exectop": spawn,
    "ext4dist": files,
    "klockstat": contend,
    "kprobe_hits": files,
    "netproc": converse,
    "runqlat": switch,
    "syscount": call,
    "sysfork": spawn,
    "tcplife": connect,
    "tcpperpid": converse,
    "tcpretrans": knock,
    "tcptop": converse,
    "tracepoint_hits": spawn,
    "uprobe_hits": spawn,
}

# Modules of which no workload can be made here, and why.
WITHOUT = {
    "profile": "runs only between `pmstore ... start` and `stop`, 47 times a second and CPU",
    "xfsdist": "needs a disk with XFS",
    "zfsdist": "needs OpenZFS",
}
