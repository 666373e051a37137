"""What both comparisons of benches/beside share: an agent under a pmcd of its own, its values, and what the kernel counts."""

import os
import re
import subprocess
import time
from collections import defaultdict
from pathlib import Path

from through_pmcd import Client, Pmcd

HERE = Path(__file__).resolve().parent
PMDAS = Path("/var/lib/pcp/pmdas")
CONFIGURATION = HERE / "corebcc.conf"


def say(text):
    """A line of progress."""
    print(f"# {time.monotonic():.0f} s: {text}", flush=True)


def settings(text, section, options):
    """The text of a configuration with options put into a section, before those that are there."""
    lines = "".join(f"{name} = {value}\n" for name, value in options.items())
    for name in options:
        text = re.sub(rf"(?ms)(^\[{section}\]$(?:(?!^\[).)*?)^{name} =[^\n]*\n", r"\1", text)
    return text.replace(f"[{section}]\n", f"[{section}]\n{lines}", 1)


def value(text):
    """A value as pminfo prints it."""
    if text.startswith('"'):
        return text[1:-1]
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


class Side:
    """An agent under a pmcd of its own, ready when it is made."""

    def __init__(self, name, domain, line, program, metrics, trees, wanted=0, names=()):
        self.name, self.metrics, self.trees = name, metrics, trees
        home = Path("/run/beside") / name
        (home / "config/pmda").mkdir(parents=True)
        os.environ["PCP_VAR_DIR"] = str(home)  # each has its own identifiers of instances
        stem = metrics[0].split(".")[0]
        notready = "" if name == "pmdabpf" else "notready "
        self.pmcd = Pmcd(home, [(stem, domain, notready, line.format(home=home))], names)
        self.client = Client(self.pmcd.port)
        self.pid = self.until(lambda: self.pmcd.agent(program), 30)
        pmids = self.until(self.names)
        self.until(lambda: self.client.answered(pmids))
        started = int(Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]) / 100
        self.ready = time.clock_gettime(time.CLOCK_BOOTTIME) - started
        self.pmids, self.processor_at_start = pmids, self.processor()
        text = "".join(log.read_text(errors="replace") for log in home.glob("*.log"))
        loaded = re.search(r"loaded modules \((\d+)\)|ready: (\d+) of \d+ modules", text)
        self.modules = int(loaded[1] or loaded[2]) if loaded else wanted - text.count("Module NOT active!")
        say(f"{name} is ready after {self.ready:.2f} s with {self.modules} modules")

    def names(self):
        """The identifiers of its metrics, if it has them by now."""
        if not Path(f"/proc/{self.pid}").exists():
            raise ChildProcessError(f"{self.name} ended")
        return self.client.lookup(self.metrics, 0.1)

    @staticmethod
    def until(question, patience=600):
        """Asks until there is an answer."""
        deadline = time.monotonic() + patience
        while True:
            try:
                if answer := question():
                    return answer
            except RuntimeError:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError("no answer in time")
            time.sleep(0.01)

    def processor(self):
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def values(self):
        """All values there are: metric, then instance (None where there are none), without the first component of its name."""
        command = ["pminfo", "-h", f"unix://{self.pmcd.folder}/pmcd.socket", "-f", *self.trees]
        text = subprocess.run(command, capture_output=True, text=True, errors="replace").stdout
        found, metric = defaultdict(dict), None
        for line in text.splitlines():
            if match := re.match(r' +inst \[-?\d+ or "(.*?)"\] value (.*)$', line):
                found[metric][match[1]] = value(match[2])
            elif match := re.match(r" +value (.*)$", line):
                found[metric][None] = value(match[1])
            elif line and not line[0].isspace():
                metric = line.split(".", 1)[-1]
        return found


def kernel_counts():
    """What the kernel itself counts: completed requests, arrivals on a CPU, new tasks, context switches, retransmitted segments."""
    stat = dict(line.split(" ", 1) for line in Path("/proc/stat").read_text().splitlines())
    disks = [line.split() for line in Path("/proc/diskstats").read_text().splitlines()]
    disks = [f for f in disks if Path("/sys/block", f[2]).exists()]
    arrivals = (line.split() for line in Path("/proc/schedstat").read_text().splitlines())
    tcp = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Tcp:")]
    return {
        # Some flushes count as a write as well, some as a flush only.
        "requests": sum(int(f[3]) + int(f[7]) + int(f[14]) for f in disks),
        "flushes": sum(int(f[18]) for f in disks),
        "arrivals": sum(int(f[9]) for f in arrivals if re.match(r"cpu\d", f[0])),
        "tasks": int(stat["processes"]),
        "switches": int(stat["ctxt"]),
        "retransmissions": int(tcp[1][tcp[0].index("RetransSegs")]),
    }


def snapshot(sides):
    """The values of each, with the kernel's counts before and after."""
    taken = {}
    for side in sides:
        before = kernel_counts()
        taken[side.name] = (before, side.values(), kernel_counts())
    return taken


def delta(after, before):
    """What was counted in between, by instance."""
    return {instance: count - before.get(instance, 0) for instance, count in after.items()}


def in_common(ours, theirs):
    """The share of two histograms that is in the same buckets of both."""
    all_ours, all_theirs = sum(ours.values()), sum(theirs.values())
    return sum(min(count / all_ours, theirs.get(low, 0) / all_theirs) for low, count in ours.items())


def table(values, prefix, columns):
    """Rows of a row table: a dictionary for each."""
    rows = defaultdict(dict)
    for column in columns:
        for row, content in values.get(f"{prefix}.{column}", {}).items():
            rows[row][column] = content
    return list(rows.values())
