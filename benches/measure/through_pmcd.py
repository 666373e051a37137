"""Both agents under one pmcd of its own, and a client that fetches: round trip, bpf() calls, memory."""

import ctypes
import ctypes.util
import os
import re
import signal
import socket
import subprocess
import time


class Pmcd:
    """pmcd with agents, on a free port of the loopback, with everything it writes in `folder`. `names`: further trees and their domains."""

    def __init__(self, folder, agents, names=()):
        self.folder, self.folder_text = folder, str(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        lines = ["pmcd\t2\tdso\tpmcd_init\t/var/lib/pcp/pmdas/pmcd/pmda_pmcd.so"]
        lines += [f"{name}\t{domain}\tpipe\tbinary\t{notready}{command}" for name, domain, notready, command in agents]
        (folder / "pmcd.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
        names = (*((name, domain) for name, domain, _, _ in agents), *names)
        names = "root {\n\tpmcd\n" + "".join(f"\t{name}\t{domain}:*:*\n" for name, domain in names) + "}\n"
        (folder / "root").write_text(names + "pmcd {\n\tversion\t2:0:2\n}\n", encoding="utf-8")
        environment = dict(
            os.environ,
            PMCD_ROOT_AGENT="0",
            PCP_TMP_DIR=self.folder_text,
            PCP_RUN_DIR=self.folder_text,
            PCP_LOG_DIR=self.folder_text,
            PMCD_SOCKET=f"{folder}/pmcd.socket",
        )
        command = ["/usr/lib/pcp/bin/pmcd", "-f", "-A", "-t", "60", "-p", str(self.port), "-i", "127.0.0.1", "-U", "root"]
        command += ["-s", f"{folder}/pmcd.socket", "-c", f"{folder}/pmcd.conf", "-l", f"{folder}/pmcd.log", "-n", f"{folder}/root"]
        self.process = subprocess.Popen(command, env=environment, cwd=folder)

    def agent(self, program):
        """The process id of the agent whose program has this name."""
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(children, encoding="ascii") as pids:
            for pid in pids.read().split():
                with open(f"/proc/{pid}/cmdline", "rb") as line:
                    if program.encode() in line.read().split(b"\0")[0]:
                        return int(pid)
        raise RuntimeError(f"pmcd has no agent {program}; see {self.folder}/pmcd.log")

    def stop(self):
        """Ends pmcd; its agents end by themselves when it is gone."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


class Client:
    """A client of pmcd by libpcp's own functions."""

    def __init__(self, port):
        self.pcp = ctypes.CDLL(ctypes.util.find_library("pcp") or "libpcp.so.3")
        self.pcp.pmErrStr.restype = ctypes.c_char_p
        deadline = time.monotonic() + 20
        while True:
            self.context = self.pcp.pmNewContext(1, f"127.0.0.1:{port}".encode())
            if self.context >= 0:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"no connection to pmcd: {self.pcp.pmErrStr(self.context).decode()}")
            time.sleep(0.05)

    def lookup(self, names, patience=20):
        """The identifiers of metrics, as soon as all are there."""
        self.pcp.pmUseContext(self.context)
        array = (ctypes.c_char_p * len(names))(*[name.encode() for name in names])
        pmids = (ctypes.c_uint * len(names))()
        deadline = time.monotonic() + patience
        while (status := self.pcp.pmLookupName(len(names), array, pmids)) != len(names):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{names}: {self.pcp.pmErrStr(status).decode()}")
            time.sleep(0.05)
        return pmids

    def answered(self, pmids):
        """Whether a fetch has values of all of them. Offsets as in pmResult and pmValueSet of PCP 5 and 6."""
        self.pcp.pmUseContext(self.context)
        result = ctypes.c_void_p()
        if self.pcp.pmFetch(len(pmids), pmids, ctypes.byref(result)) < 0:
            return False
        sets = (ctypes.c_void_p * len(pmids)).from_address(result.value + 24)
        counts = [ctypes.c_int.from_address(entry + 4).value for entry in sets]
        self.pcp.pmFreeResult(result)
        return min(counts) > 0

    def fetch(self, pmids, times):
        """Fetches so often; microseconds per fetch."""
        self.pcp.pmUseContext(self.context)
        result = ctypes.c_void_p()
        fetch, free = self.pcp.pmFetch, self.pcp.pmFreeResult
        begin = time.perf_counter()
        for _ in range(times):
            status = fetch(len(pmids), pmids, ctypes.byref(result))
            if status < 0:
                raise RuntimeError(f"fetch: {self.pcp.pmErrStr(status).decode()}")
            free(result)
        return (time.perf_counter() - begin) / times * 1e6


def system_calls(pid, work, which="all"):
    """System calls of a process while something works: `which` is a name, a list of names, or all."""
    tracer = subprocess.Popen(["strace", "-f", "-c", "-e", f"trace={which}", "-p", str(pid)], stderr=subprocess.PIPE, text=True)
    attached = re.compile(r"attached")
    while not attached.search(line := tracer.stderr.readline()):
        if not line:
            raise RuntimeError("strace cannot attach")
    work()
    tracer.send_signal(signal.SIGINT)
    text = tracer.communicate()[1]
    rows = [line.split() for line in text.splitlines()]
    return sum(int(row[3]) for row in rows if len(row) >= 5 and row[0][0].isdigit() and row[-1] != "total")
