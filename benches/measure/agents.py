"""Agents as pmcd runs them: over pipes, with the PDUs of a handshake and a fetch. Yields values and times."""

import os
import re
import select
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

SHIPPED = Path(__file__).resolve().parent.parent.parent / "corebcc.conf"

PDU_CREDS, PDU_PROFILE, PDU_FETCH, PDU_RESULT, PDU_ERROR = 0x700C, 0x7002, 0x7003, 0x7001, 0x7000
AGAIN = struct.pack(">i", -12389)


class Agent:
    """One agent, started; `metrics` are the identifiers of both histograms, disks first."""

    def __init__(self, name, command, cwd, metrics):
        self.name, self.metrics = name, metrics
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        self.send(PDU_CREDS, struct.pack(">iI", 1, 0x01020000))
        kind, _ = self.receive()
        if kind != PDU_CREDS:
            raise RuntimeError(f"{name}: PDU {kind:#x} instead of CREDS")
        self.send(PDU_PROFILE, struct.pack(">4i", 0, 0, 0, 0))
        self.histograms = self.until_values()
        self.first_answer = time.monotonic() - self.started
        self.spent = cpu_seconds(self.pid)

    @property
    def pid(self):
        """The agent's process id."""
        return self.process.pid

    def send(self, kind, body):
        """Writes one PDU."""
        os.write(self.process.stdin.fileno(), struct.pack(">Iii", 12 + len(body), kind, 0) + body)

    def read(self, count, patience=10):
        """Reads so many bytes."""
        data = b""
        while len(data) < count:
            if not select.select([self.process.stdout], [], [], patience)[0]:
                raise RuntimeError(f"{self.name}: no answer in {patience} s")
            more = os.read(self.process.stdout.fileno(), count - len(data))
            if not more:
                raise RuntimeError(f"{self.name}: ended, see its log")
            data += more
        return data

    def receive(self):
        """Reads one PDU: its type and what follows the header."""
        length, kind, _ = struct.unpack(">Iii", self.read(12))
        return kind, self.read(length - 12)

    def fetch(self):
        """The sum of each histogram; None where the agent reports no values (yet)."""
        self.ask(self.metrics)
        kind, body = self.receive()
        if kind != PDU_RESULT:
            return [None] * len(self.metrics)
        sums, at = [], 12
        for _ in self.metrics:
            _, count = struct.unpack_from(">Ii", body, at)
            at += 8
            if count <= 0:
                sums.append(None)
                continue
            form, total = struct.unpack_from(">i", body, at)[0], 0
            at += 4
            for i in range(count):
                _, word = struct.unpack_from(">iI", body, at + 8 * i)
                if form == 0:
                    total += word
                else:  # the word is the block's place, counted in words from the header
                    total += struct.unpack_from(">Q", body, word * 4 - 12 + 4)[0]
            at += 8 * count
            sums.append(total)
        return sums

    def counts(self, metrics):
        """How many instances each metric has; less than none is an error."""
        self.ask(metrics)
        _, body = self.receive()
        counts, at = [], 12
        for _ in metrics:
            counts.append(struct.unpack_from(">i", body, at + 4)[0])
            at += 8 + (4 + 8 * counts[-1] if counts[-1] > 0 else 0)
        return counts

    def ask(self, metrics):
        """Sends a fetch."""
        self.send(PDU_FETCH, struct.pack(">iqi", 0, 0, len(metrics)) + struct.pack(f">{len(metrics)}I", *metrics))

    def touch(self, metrics):
        """Fetches metrics and does not look at their values."""
        self.ask(metrics)
        self.receive()

    def store(self, metric, text, patience=10):
        """Stores a string, as pmstore does, as soon as the agent is ready for it."""
        data = text.encode()
        block = struct.pack(">I", 6 << 24 | 4 + len(data)) + data + bytes(-len(data) % 4)
        deadline, answer = time.monotonic() + patience, (PDU_ERROR, AGAIN)
        while answer == (PDU_ERROR, AGAIN) and time.monotonic() < deadline:
            time.sleep(0.05)
            self.send(PDU_RESULT, struct.pack(">3i", 0, 0, 1) + struct.pack(">I2iiI", metric, 1, 1, -1, 11) + block)
            answer = self.receive()
        if answer != (PDU_ERROR, bytes(4)):
            raise RuntimeError(f"{self.name}: store of {text} refused: {answer}")

    def until_values(self, patience=20):
        """Fetches until both histograms answer."""
        while time.monotonic() - self.started < patience:
            sums = self.fetch()
            if None not in sums:
                return sums
            time.sleep(0.0002)
        raise RuntimeError(f"{self.name}: no values in {patience} s, last {sums}; see its log")

    def stop(self):
        """Ends it as pmcd does, by closing the pipes; by force if it stays."""
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def processes(pid):
    """A process and all of its descendants: an agent with its helpers."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, children.read_text(encoding="ascii").split())
    return found


def memory(pid):
    """Resident memory in KiB by kind, from smaps_rollup: of a process and its descendants together."""
    fields = {}
    for one in processes(pid):
        with open(f"/proc/{one}/smaps_rollup", encoding="ascii") as rollup:
            for line in rollup.readlines()[1:]:
                key, value = line.split(":")
                fields[key] = fields.get(key, 0) + int(value.split()[0])
    return fields


def memory_of_maps(pid):
    """KiB of the kernel's memory in the maps and programs that a process holds."""
    held = {}
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        fields = dict(line.split(":", 1) for line in info.read_text(encoding="ascii").splitlines() if ":" in line)
        if "memlock" in fields:
            held[fields.get("map_id"), fields.get("prog_id")] = int(fields["memlock"])
    return sum(held.values()) / 1024


def cpu_seconds(pid):
    """Processor time of a process, those of its threads included that have ended: its CPU clock (clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | 2)


def modules_of(text):
    """The modules that a configuration has sections of."""
    return [name for name in re.findall(r"^\[(\w+)\]$", text, re.M) if name != "pmda"]


def configuration(folder, modules, rate=None, **options):
    """The shipped configuration with these modules on, its example probes and this machine's JVM; `rate` is that of profile's samples, and
    `options` replace the shipped examples and defaults."""
    text = re.sub(r"(?m)^modules = .*$", f"modules = {','.join(modules)}", SHIPPED.read_text(encoding="utf-8"))
    text = re.sub(r"(?m)^#sample_frequency = .*$", f"sample_frequency = {rate}", text) if rate else text
    jvm = Path(shutil.which("java") or "java").resolve().parent.parent
    text = re.sub(r"(?m)^#(?=(kprobes|tracepoints|uprobes|usdts|jvm_path) = )", "", text).replace("/etc/alternatives/jre", str(jvm))
    for option, value in options.items():
        text = re.sub(rf"(?m)^#?{option} = .*$", f"{option} = {value}", text)
    file = folder / "bench.conf"
    file.write_text(text, encoding="utf-8")
    return file


def loaded(program, config, folder, behind=(), patience=30):
    """An agent that has loaded its modules, and the seconds this took from exec."""
    log = folder / "agent.log"
    log.unlink(missing_ok=True)
    begin = time.monotonic()
    agent = Agent("corebcc", [*behind, program.resolve(), "-l", log, "-c", config], folder, [])
    while ": ready: " not in (log.read_text(encoding="utf-8") if log.exists() else ""):
        if time.monotonic() - begin > patience:
            agent.stop()
            raise RuntimeError(f"not loaded in {patience} s; see {log}")
        time.sleep(0.0005)
    return agent, time.monotonic() - begin
