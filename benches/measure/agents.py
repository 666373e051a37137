"""Agents as pmcd runs them: over pipes, with the PDUs of a handshake and a fetch. Yields values and times."""

import os
import select
import signal
import struct
import subprocess
import time

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
        self.send(PDU_FETCH, struct.pack(">iqi", 0, 0, len(self.metrics)) + struct.pack(f">{len(self.metrics)}I", *self.metrics))
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

    def touch(self, metrics):
        """Fetches metrics and does not look at their values."""
        self.send(PDU_FETCH, struct.pack(">iqi", 0, 0, len(metrics)) + struct.pack(f">{len(metrics)}I", *metrics))
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


def memory(pid):
    """Resident memory in KiB by kind, from smaps_rollup."""
    fields = {}
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as rollup:
        for line in rollup.readlines()[1:]:
            key, value = line.split(":")
            fields[key] = int(value.split()[0])
    return fields
