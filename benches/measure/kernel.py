"""What events cost in the kernel: run time of the BPF programs, from BPF run time statistics, per event counted elsewhere."""

import ctypes
import json
import os
import re
import subprocess
from pathlib import Path

STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


class Statistics:
    """BPF run time statistics, switched on for as long as this is entered."""

    def __enter__(self):
        self.before = STATS.read_text(encoding="ascii")
        STATS.write_text("1", encoding="ascii")

    def __exit__(self, *_):
        STATS.write_text(self.before, encoding="ascii")


def programs():
    """All loaded programs: id to (name, runs, nanoseconds)."""
    listed = json.loads(subprocess.run(["bpftool", "-j", "prog", "show"], capture_output=True, check=True).stdout)
    return {p["id"]: (p.get("name", ""), p.get("run_cnt", 0), p.get("run_time_ns", 0)) for p in listed}


def held(pid="self"):
    """The programs a process holds, by the descriptors it has of them: somebody else may load some at any time."""
    ids = set()
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            lines = info.read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            continue
        ids.update(int(line.split()[1]) for line in lines if line.startswith("prog_id:"))
    return ids


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


class Floor:
    """Empty programs in these sections, while this is entered. Loaded by the system's libbpf, through ctypes."""

    def __init__(self, folder, sections):
        self.sections, self.source, self.file = sections, folder / "floor.bpf.c", folder / "floor.bpf.o"
        self.libbpf = ctypes.CDLL("libbpf.so.1", use_errno=True)
        for function in ("bpf_object__open", "bpf_object__next_program", "bpf_program__attach"):
            getattr(self.libbpf, function).restype = ctypes.c_void_p
        self.object, self.links = None, []

    def __enter__(self):
        lines = ['char LICENSE[] __attribute__((section("license"), used)) = "GPL";']
        for section in self.sections:
            name = "floor_" + re.sub(r"\W", "_", section)
            lines.append(f'__attribute__((section("{section}"), used)) int {name}(void *ctx) {{ return 0; }}')
        self.source.write_text("\n".join(lines) + "\n", encoding="ascii")
        clang = ["clang", "-O2", "-g", "-target", "bpf", "-c", str(self.source), "-o", str(self.file)]
        subprocess.run(clang, check=True)
        self.object = ctypes.c_void_p(self.libbpf.bpf_object__open(str(self.file).encode()))
        if not self.object or self.libbpf.bpf_object__load(self.object):
            raise RuntimeError(f"the empty programs cannot be loaded: {os.strerror(ctypes.get_errno())}")
        program = None
        while program := self.libbpf.bpf_object__next_program(self.object, ctypes.c_void_p(program)):
            link = self.libbpf.bpf_program__attach(ctypes.c_void_p(program))
            if not link:
                self.__exit__()
                raise RuntimeError(f"an empty program cannot be attached: {os.strerror(ctypes.get_errno())}")
            self.links.append(ctypes.c_void_p(link))
        return held()

    def __exit__(self, *_):
        for link in self.links:
            self.libbpf.bpf_link__destroy(link)
        self.links.clear()
        self.libbpf.bpf_object__close(self.object)
