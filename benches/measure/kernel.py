"""What events cost in the kernel: run time of the BPF programs, from BPF run time statistics, per event counted elsewhere."""

import ctypes
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from bpf import perf_events, programs

STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


class Statistics:
    """BPF run time statistics, switched on for as long as this is entered."""

    def __enter__(self):
        self.before = STATS.read_text(encoding="ascii")
        STATS.write_text("1", encoding="ascii")

    def __exit__(self, *_):
        STATS.write_text(self.before, encoding="ascii")


def held(pid):
    """The programs a process holds, by its descriptors: somebody else may load some at any time."""
    ids = {event["prog_id"] for event in perf_events(pid)}
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            lines = info.read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            continue
        ids.update(int(line.split()[1]) for line in lines if line.startswith("prog_id:"))
    return ids


@contextmanager
def tool(command):
    """The programs of a tool, which runs for as long as this is entered."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not (ids := held(process.pid)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command)} has no programs")
            time.sleep(0.05)
        time.sleep(0.5)  # until it has attached them
        yield held(process.pid) or ids
    finally:
        process.terminate()
        process.wait()


def disk_requests():
    """Requests completed, by disk, without partitions and device-mapper: reads, writes, discards, flushes."""
    disks = {}
    with open("/proc/diskstats", encoding="ascii") as lines:
        for fields in map(str.split, lines):
            if Path("/sys/block", fields[2]).exists() and not fields[2].startswith("dm-"):
                disks[fields[2]] = sum(int(fields[i]) for i in (3, 7, 14, 18) if i < len(fields))
    return disks


def switches():
    """Context switches of all CPUs together, those to idle included."""
    with open("/proc/stat", encoding="ascii") as lines:
        return {"all": next(int(line.split()[1]) for line in lines if line.startswith("ctxt "))}


def between(before, after):
    """Events between two counts. A disk may come or go meanwhile; what is gone counts no more."""
    return sum(count - min(count, before.get(name, 0)) for name, count in after.items())


class Load:
    """Something that makes events: `hooks` are the tracepoints on its path, `events` counts independently."""

    def __init__(self, name, hooks, events, command):
        self.name, self.hooks, self.events, self.command = name, hooks, events, command

    def run(self):
        """Makes the events."""
        subprocess.run(self.command, check=True, stdout=subprocess.DEVNULL)

    def hook(self, program):
        """The hook of a program, by its name."""
        return max((hook for hook in self.hooks if hook in program or hook == alias(program)), key=len, default=None)


def alias(program):
    """A program of pmdabpf is misspelt."""
    return {"sched_swith": "sched_switch"}.get(program)


class Cost:
    """One run of a load under one design."""

    def __init__(self, load, ids, before, after, events):
        self.events, self.by_hook = events, {}
        for ident in ids:
            name, runs, ns = after[ident]
            hook = load.hook(name)
            if hook:
                runs, ns = runs - before[ident][1], ns - before[ident][2]
                had = self.by_hook.get(hook, (0, 0))
                self.by_hook[hook] = (had[0] + runs, had[1] + ns)

    def programs_per_event(self):
        """Program runs per event."""
        return sum(runs for runs, _ in self.by_hook.values()) / self.events

    def gross(self):
        """Nanoseconds per event, the floor included."""
        return sum(ns for _, ns in self.by_hook.values()) / self.events

    def net(self, floor):
        """Nanoseconds per event beyond what empty programs would have taken as often at the same hooks."""
        return sum(ns - runs * floor[hook] for hook, (runs, ns) in self.by_hook.items()) / self.events


def measure(load, ids):
    """Runs the load with the statistics on; `ids` are the programs of the design that is loaded."""
    before, events = programs(), load.events()
    load.run()
    events, after = between(events, load.events()), programs()
    return Cost(load, ids, before, after, events)


class Code:
    """A place in a file that processes execute, or the return of the function that begins there."""

    def __init__(self, file, offset, at_return):
        self.file, self.offset, self.at_return = file, offset, at_return

    def attach(self, libbpf, program):
        """The link of a program of type kprobe."""
        file, offset = str(self.file).encode(), ctypes.c_size_t(self.offset)
        return libbpf.bpf_program__attach_uprobe(program, self.at_return, -1, file, offset)


class Clock:
    """Samples of what a CPU runs, so many a second: the software CPU clock of perf_event_open(2)."""

    def __init__(self, cpu, rate):
        self.cpu, self.rate = cpu, rate

    def attach(self, libbpf, program):
        """The link of a program of type perf_event."""
        software, by_frequency = 1, 1 << 10
        words = [software | 64 << 32, 0, self.rate, 0, 0, by_frequency, 0, 0]  # the first 64 bytes of perf_event_attr
        attributes = (ctypes.c_uint64 * 8)(*words)
        call = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
        event = ctypes.CDLL(None, use_errno=True).syscall(call, attributes, -1, self.cpu, -1, 0)
        return libbpf.bpf_program__attach_perf_event(program, event) if event >= 0 else None


class Cgroups:
    """All cgroups of v2."""

    def attach(self, libbpf, program):
        """The link of a program of type cgroup_skb."""
        mounts = Path("/proc/self/mounts").read_text(encoding="ascii").splitlines()
        root = next(mount for _, mount, kind, *_ in map(str.split, mounts) if kind == "cgroup2")
        descriptor = os.open(root, os.O_RDONLY)
        try:
            return libbpf.bpf_program__attach_cgroup(program, descriptor)
        finally:
            os.close(descriptor)


def in_user_code(pid):
    """Where a process has attached programs to user code: program to places."""
    places, folder = {}, Path(f"/proc/{pid}/cwd").resolve()
    for event in perf_events(pid):
        if event["fd_type"] in ("uprobe", "uretprobe"):
            file = folder / event["filename"].replace("/proc/self/", f"/proc/{pid}/")
            place = Code(file, event["offset"], event["fd_type"] == "uretprobe")
            places.setdefault(event["prog_id"], []).append(place)
    return places


class Small:
    """A program of this section that does nothing, unless `body` says what, at what the section names or in these places."""

    def __init__(self, section, body="return 0;", places=None):
        self.section, self.body, self.places = section, body, places

    def attach(self, libbpf, program):
        """The links."""
        if self.places is None:
            return [libbpf.bpf_program__attach(program)]
        return [place.attach(libbpf, program) for place in self.places]


class Loaded:
    """A BPF object that the system's libbpf loads, and the links of its programs, until it is left."""

    def __init__(self, *pointers):
        self.libbpf = ctypes.CDLL("libbpf.so.1", use_errno=True)
        for function in pointers:
            getattr(self.libbpf, function).restype = ctypes.c_void_p
        self.object, self.links = None, []

    def load(self, file):
        """Loads the object of a file."""
        self.object = ctypes.c_void_p(self.libbpf.bpf_object__open(str(file).encode()))
        if not self.object or self.libbpf.bpf_object__load(self.object):
            raise RuntimeError(f"{file} cannot be loaded: {os.strerror(ctypes.get_errno())}")

    def __exit__(self, *_):
        for link in self.links:
            self.libbpf.bpf_link__destroy(link)
        self.links.clear()
        self.libbpf.bpf_object__close(self.object)


class Floor(Loaded):
    """Small programs by their names, while this is entered. Loaded by the system's libbpf, through ctypes."""

    def __init__(self, folder, smalls):
        pointers = ["bpf_object__open", "bpf_object__find_program_by_name", "bpf_object__find_map_by_name"]
        pointers += [f"bpf_program__attach{kind}" for kind in ("", "_uprobe", "_perf_event", "_cgroup")]
        super().__init__(*pointers)
        self.smalls, self.source, self.file = smalls, folder / "floor.bpf.c", folder / "floor.bpf.o"

    def __enter__(self):
        lines = ['char LICENSE[] __attribute__((section("license"), used)) = "GPL";', "unsigned long seen;"]
        for name, small in self.smalls.items():
            lines.append(f'__attribute__((section("{small.section}"), used)) int {name}(unsigned long *ctx) {{ {small.body} }}')
        self.source.write_text("\n".join(lines) + "\n", encoding="ascii")
        clang = ["clang", "-O2", "-g", "-target", "bpf", "-c", str(self.source), "-o", str(self.file)]
        subprocess.run(clang, check=True)
        self.load(self.file)
        for name, small in self.smalls.items():
            program = ctypes.c_void_p(self.libbpf.bpf_object__find_program_by_name(self.object, name.encode()))
            links = small.attach(self.libbpf, program)
            self.links += [ctypes.c_void_p(link) for link in links if link]
            if not all(links):
                self.__exit__()
                raise RuntimeError(f"{name} cannot be attached: {os.strerror(ctypes.get_errno())}")
        return held(os.getpid())

    def seen(self):
        """What a program has written into `seen`."""
        variables = ctypes.c_void_p(self.libbpf.bpf_object__find_map_by_name(self.object, b".bss"))
        first, seen = ctypes.c_uint32(0), ctypes.c_uint64(0)
        if self.libbpf.bpf_map_lookup_elem(self.libbpf.bpf_map__fd(variables), ctypes.byref(first), ctypes.byref(seen)):
            raise RuntimeError(f"the variables of a program cannot be read: {os.strerror(ctypes.get_errno())}")
        return seen.value


class Object(Loaded):
    """The programs of an object file, attached where their sections say, while this is entered."""

    def __init__(self, file):
        super().__init__("bpf_object__open", "bpf_object__next_program", "bpf_program__attach")
        self.file = file

    def __enter__(self):
        self.load(self.file)
        program = None
        while program := self.libbpf.bpf_object__next_program(self.object, ctypes.c_void_p(program)):
            link = self.libbpf.bpf_program__attach(ctypes.c_void_p(program))
            if not link:
                raise RuntimeError(f"a program of {self.file} cannot be attached: {os.strerror(ctypes.get_errno())}")
            self.links.append(ctypes.c_void_p(link))
        return held(os.getpid())
