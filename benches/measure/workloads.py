"""What makes the events of each module: a line in one of the tables below is all that benches/events needs of a new one."""

import ctypes
import fcntl
import importlib
import mmap
import os
import pty
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from kernel import Floor, Small

HERE = Path(__file__).resolve().parent.parent
sys.path.append(str(HERE.parent / "tests" / "programs"))


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


def callers(folder):
    """The program that times calls of its functions."""
    program = folder / "callers"
    subprocess.run(["cc", "-O2", "-o", program, HERE / "callers.c"], check=True)
    return program


def spawn(_, times=1000):
    """Processes that begin and end."""
    for _ in range(times):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


@contextmanager
def limited():
    """A cgroup whose tasks may take 32 MB: the command by which a shell enters it."""
    v1 = Path("/sys/fs/cgroup/memory")
    mount, limits = (v1, "memory.limit_in_bytes") if v1.is_dir() else (Path("/sys/fs/cgroup"), "memory.max")
    cgroup = mount / f"corebcc-bench-{os.getpid()}"
    cgroup.mkdir()
    try:
        (cgroup / limits).write_text("32M", encoding="ascii")
        yield f"echo $$ > {cgroup}/cgroup.procs"
    finally:
        cgroup.rmdir()


def exhaust(_, times=20):
    """Processes that are killed at the limit of a cgroup's memory."""
    with limited() as enter:
        for _ in range(times):
            command = f"{enter}; exec dd if=/dev/zero of=/dev/null bs=64M count=1"
            subprocess.run(["sh", "-c", command], check=False, stderr=subprocess.DEVNULL)


def overflow(_):
    """Datagrams to a socket that nobody reads."""
    with socket.socket(type=socket.SOCK_DGRAM) as full, socket.socket(type=socket.SOCK_DGRAM) as sender:
        full.bind(("127.0.0.1", 0))
        full.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(20_000):
            sender.sendto(b"x" * 100, full.getsockname())


def ask(_):
    """Questions to a name server, and their answers."""
    with socket.socket(type=socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as client:
        try:
            server.bind(("127.0.0.1", 53))
        except OSError:
            server.bind(("127.0.0.54", 53))
        client.connect(server.getsockname())
        for number in range(10_000):
            client.send(number.to_bytes(2) + b"\x01\x00" + b"\0" * 12)
            question, who = server.recvfrom(512)
            server.sendto(question[:2] + b"\x81\x80" + question[4:], who)
            client.recv(512)


def leave(_):
    """Exits of a guest to its process."""
    guests = importlib.import_module("guests")
    vcpu, *_kept = guests.guest(guests.WRITE)
    for _ in range(20_000):
        fcntl.ioctl(vcpu, guests.RUN, 0)


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


def converse_and_spawn(folder):
    """Messages, and processes that begin and end."""
    converse(folder)
    spawn(folder)


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


def allocate(_):
    """Memory of libc's malloc."""
    for _ in range(TIMES):
        bytearray(4096)


def reclaim(folder):
    """A file that is larger than the memory which the cgroup of its writer may take."""
    with limited() as enter:
        subprocess.run(["sh", "-c", f"{enter}; exec dd if=/dev/zero of={folder}/large bs=1M count=256"], check=True, stderr=subprocess.DEVNULL)


def type_lines():
    """Lines that are typed at a shell."""
    lines = b":\n" * 2000 + b"exit\n"
    command = ["script", "-qec", "bash --norc -i", "/dev/null"]
    subprocess.run(command, check=True, input=lines, stdout=subprocess.DEVNULL)


@contextmanager
def java(_, folder):
    """A Java virtual machine with all its probes on. The agent finds it by its name, and looks once a second."""
    if not (folder / "Events.class").exists():
        subprocess.run(["javac", "-d", folder, HERE / "Events.java"], check=True)
    command = ["java", "-XX:+UseSerialGC", "-Xint", "-XX:+DTraceMethodProbes", "-XX:+DTraceAllocProbes", "-cp", folder, "Events"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def work():
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()

        try:
            process.stdout.readline()
            time.sleep(3)
            yield work
        finally:
            process.kill()


@contextmanager
def sampling(agent, _):
    """What `pmstore bcc.proc.profile start` begins, on CPUs that are all busy, in the kernel and out of it."""
    agent.store(PROFILE, "start")
    busy = "import os, time\nend = time.monotonic() + 8\nwhile time.monotonic() < end: os.listdir('/proc/self')"

    def work():
        processes = [subprocess.Popen([sys.executable, "-c", busy]) for _ in os.sched_getaffinity(0)]
        for process in processes:
            process.wait()

    yield work


class Calls:
    """Kernel functions that are called in turn, each with the same pointer; the metrics that count them, in all."""

    def __init__(self, *names, pointer=None, counts=()):
        self.names, self.pointer, self.counts = names, pointer, counts


class StandIns:
    """User functions in the place of kernel functions: files in the agent's folder with machine code and a function's name."""

    # For an agent started behind this the kind of event that is a kprobe is that of a uprobe, and what it gives with it as
    # the name of a function is the path of a file. Nobody else sees the mount.
    BEHIND = [
        *("unshare", "--mount", "sh", "-c"),
        "kinds=/sys/bus/event_source/devices; uprobe=$(readlink -f $kinds/uprobe); mount -t tmpfs tmpfs $kinds;"
        'ln -s "$uprobe" $kinds/uprobe; ln -s "$uprobe" $kinds/kprobe; exec "$@"',
        "sh",
    ]

    def __init__(self, folder, calls):
        self.calls, self.functions = calls, []
        map_ = ctypes.CDLL(None).mmap
        map_.restype = ctypes.c_void_p
        source, built, code = (folder / f"function.{end}" for end in ("c", "o", "code"))
        source.write_text("long function(void) { return 0; }\n", encoding="ascii")
        subprocess.run(["cc", "-O2", "-c", source, "-o", built], check=True)
        subprocess.run(["objcopy", "-O", "binary", "-j", ".text", built, code], check=True)
        for name in calls.names:
            (folder / name).write_bytes(code.read_bytes())
            with open(folder / name, "rb") as file:
                # What can be written to has no uprobes, and what Python maps otherwise has no address.
                executed = mmap.PROT_READ | mmap.PROT_EXEC
                address = map_(None, mmap.PAGESIZE, executed, mmap.MAP_PRIVATE, file.fileno(), ctypes.c_long(0))
            self.functions.append(ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(address))

    @contextmanager
    def begin(self, agent, folder):
        """What calls them."""
        pointer = self.calls.pointer(folder) if self.calls.pointer else NOWHERE

        def work():
            for _ in range(TIMES):
                for function in self.functions:
                    function(pointer)

        agent.metrics = self.calls.counts
        yield work
        counted, called = agent.fetch(), TIMES * len(self.functions)
        if counted and counted != [called // len(counted)] * len(counted):
            raise RuntimeError(f"{agent.name} counted {counted} of {called} calls")


def folio(folder):
    """Where the kernel keeps what it knows of a page in the page cache: a program sees one come in."""
    floor = Floor(folder, {"see": Small("tp_btf/mm_filemap_add_to_page_cache", "seen = ctx[0]; return 0;")})
    with floor:
        (folder / "page").write_bytes(b"x")
        return floor.seen()


# Where the kernel has the pointer to an open file of this process: the first member of what its calls are given.
SEE_OPEN_FILE = """
struct fdtable {{ unsigned long *fd; }} __attribute__((preserve_access_index));
struct files_struct {{ struct fdtable *fdt; }} __attribute__((preserve_access_index));
struct task_struct {{ struct files_struct *files; int tgid; }} __attribute__((preserve_access_index));
long (*read)(void *, unsigned, const void *) = (void *)113;
struct task_struct *task = ((struct task_struct *(*)(void))35)();
struct files_struct *files; struct fdtable *table; unsigned long *fd; int tgid = 0;
read(&tgid, sizeof(tgid), &task->tgid);
if (tgid != {process}) return 0;
read(&files, sizeof(files), &task->files);
read(&table, sizeof(table), &files->fdt);
read(&fd, sizeof(fd), &table->fd);
seen = (unsigned long)(fd + {number});
return 0;"""
TERMINALS = []


def terminal(folder):
    """A call on a terminal that stays open, as far as a program reads of it."""
    TERMINALS.append(pty.openpty())
    body = SEE_OPEN_FILE.format(process=os.getpid(), number=TERMINALS[-1][1]).replace("\n", " ")
    floor = Floor(folder, {"see": Small("raw_tp/sys_enter", body)})
    with floor:
        os.getppid()
        return floor.seen()


def metric(cluster, item):
    """The identifier of a metric."""
    return 149 << 22 | cluster << 10 | item


def operations(cluster, *names, items=range(4)):
    """The operations of a file system, and their histograms."""
    return Calls(*names, counts=[metric(cluster, item) for item in items])


def counts(cluster, *names):
    """The operations of a file system without the Python agent's table."""
    return operations(cluster, *names, items=range(8, 40, 8))


TIMES = 20_000
SYSTEM_CALL = "__x64_sys_" if os.uname().machine == "x86_64" else "__arm64_sys_"
NOWHERE = 4096
PROFILE = metric(14, 0)

# Options that add programs or work, by module, and the metric that starts it.
OPTIONS = {
    "cgroup_net": [("packets", None)],
    "offcpu": [("stacks", metric(2001, 0))],
    "softirqs": [("wait", None)],
    "tcpconnect": [("accept", None)],
}
# Modules that have a program in common with another one that most hosts have on: what they take on top of that.
ON_TOP = {
    "cgroup_net": "netproc",
    "logins": "exectop",
    "offcpu": "runqlat",
    "oncpu": "runqlat",
    "tcpconnect": "tcplife",
}
# Programs of libbpf-tools that do the same at these hooks, with their options.
TOOLS = {
    "hardirqs": (["irq_handler_entry", "irq_handler_exit"], ["hardirqs", "-d", "3600"]),
    "offcpu": (["sched_switch"], ["offcputime", "3600"]),
    "softirqs": (["softirq_entry", "softirq_exit"], ["softirqs", "-d", "3600"]),
}

# Functions of this process, which the agent takes for those of the kernel where it cannot attach to that or has none.
CALLS = {
    "btrfsdist": counts(423, "btrfs_file_open", "btrfs_file_read_iter", "btrfs_file_write_iter", "btrfs_sync_file"),
    "cachestat": Calls("folio_mark_accessed", pointer=folio),
    "ext4dist": operations(5, "ext4_file_open", "ext4_file_read_iter", "ext4_file_write_iter", "ext4_sync_file"),
    # None of these takes long.
    "fsslower": Calls(
        *("ext4_file_open", "ext4_file_read_iter", "ext4_file_write_iter", "ext4_sync_file"),
        *("xfs_file_open", "xfs_file_read_iter", "xfs_file_write_iter", "xfs_file_fsync"),
        *("btrfs_file_open", "btrfs_file_read_iter", "btrfs_file_write_iter", "btrfs_sync_file"),
        *("fuse_open", "fuse_file_read_iter", "fuse_file_write_iter", "fuse_fsync"),
    ),
    "klockstat": Calls("mutex_lock", "mutex_unlock", counts=[metric(31, 1), metric(31, 5)]),
    "kprobe_hits": Calls("vfs_open", counts=[metric(103, 0)]),
    "mountsnoop": Calls(
        *(SYSTEM_CALL + name for name in ("mount", "umount", "fsopen", "fsconfig", "fsmount", "move_mount", "open_tree", "pivot_root")),
        counts=[metric(2013, 0)],
    ),
    "nfsdist": counts(426, "nfs_file_open", "nfs_file_read", "nfs_file_write", "nfs_file_fsync"),
    "statsnoop": Calls("vfs_statx", "user_statfs", counts=[metric(2012, 0)]),
    "tty": Calls("tty_read", "tty_write", pointer=terminal, counts=[metric(486, 0), metric(486, 2)]),
    "vfsstat": Calls(
        *("vfs_read", "vfs_write", "vfs_open", "vfs_fsync_range", "__x64_sys_fsync", "__x64_sys_fdatasync"),
        *("security_inode_unlink", "security_inode_mkdir", "security_inode_rmdir"),
    ),
    "xfsdist": operations(6, "xfs_file_open", "xfs_file_read_iter", "xfs_file_write_iter", "xfs_file_fsync"),
    "zfsdist": operations(7, "zpl_open", "zpl_iter_read", "zpl_iter_write", "zpl_fsync"),
}

# Events in user code and samples: what begins them once the agent runs.
BEGINNINGS = {
    "bashreadline": lambda _agent, _folder: nullcontext(type_lines),
    "profile": sampling,
    "ucalls": java,
    "uprobe_hits": lambda _agent, folder: nullcontext(partial(allocate, folder)),
    "usdt_hits": java,
    "usdt_jvm_threads": java,
    "ustat": java,
}

# Events in the kernel.
WORKLOADS = {
    "biolatency": read_disk,
    "bioperpid": read_disk,
    "biotop": read_disk,
    "cachestat": files,
    "cgroup_disk": read_disk,
    "cgroup_net": converse,
    "cgroup_runq": switch,
    "dns": ask,
    "execsnoop": spawn,
    "exectop": spawn,
    "exitsnoop": spawn,
    "ext4dist": files,
    "hardirqs": read_disk,
    "klockstat": contend,
    "kprobe_hits": files,
    "kvm": leave,
    "logins": spawn,
    "netdrops": overflow,
    "netproc": converse_and_spawn,
    "oomkill": exhaust,
    "offcpu": switch,
    "oncpu": switch,
    "opensnoop": files,
    "runqlat": switch,
    "softirqs": converse,
    "stalls": reclaim,
    "syscount": call,
    "sysfork": spawn,
    "tcpconnect": connect,
    "tcplife": connect,
    "tcpperpid": converse,
    "tcpretrans": knock,
    "tcprtt": connect,
    "tcptop": converse,
    "tracepoint_hits": spawn,
}
