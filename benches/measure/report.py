"""Tables of what was measured, what they were measured on, and whether that was quiet."""

import os
import re
import sys
import time
from pathlib import Path

# The page of costs for users. Its first lines name the machine of its tables.
COSTS = Path(__file__).resolve().parents[2] / "docs/costs.md"

# Above these a machine is not quiet: tasks of others that could run, and the share of the time that a hypervisor took.
OTHERS, STOLEN = 0.3, 0.02


def markdown(rows):
    """A table."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def write(file, part, text):
    """Puts text between the marks of a part of a file."""
    before, mark, rest = re.split(rf"(<!-- {part}:.*-->\n)", file.read_text(encoding="utf-8"))
    end = f"<!-- end of {part} -->"
    file.write_text(before + mark + text + end + rest.partition(end)[2], encoding="utf-8")


def write_costs(part, text):
    """Puts a table into the page of costs, unless the others there are of another machine."""
    if machine() not in COSTS.read_text(encoding="utf-8"):
        sys.exit(f"{COSTS} has numbers of another machine: name this one ({machine()}) at its beginning, and write all tables again")
    write(COSTS, part, text)


def machine():
    """What is measured on."""
    model = re.search(r"(?m)^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    version = re.match(r"\d+\.\d+", os.uname().release).group()
    return f"kernel {version}, {os.cpu_count()} CPUs {model.group(1) if model else os.uname().machine}"


def statistic(name):
    """The numbers of a line of /proc/stat."""
    line = re.search(rf"(?m)^{name} +(.*)$", Path("/proc/stat").read_text(encoding="ascii"))
    return [int(number) for number in line.group(1).split()]


class Quiet:
    """What else the machine did during a run: `look` is to be called while nothing of the run works."""

    def __init__(self):
        self.before, self.ticks, self.others = os.getloadavg()[0], statistic("cpu"), []

    def look(self):
        """Samples the tasks that can run, less this one."""
        for _ in range(10):
            self.others.append(statistic("procs_running")[0] - 1)
            time.sleep(0.003)

    def told(self):
        """The load of the machine, and what was not quiet."""
        passed = [now - then for now, then in zip(statistic("cpu"), self.ticks)]
        stolen, others = passed[7] / max(sum(passed[:8]), 1), sum(self.others) / max(len(self.others), 1)
        notes = [f"load average {self.before:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"]
        notes.append(f"{others:.1f} other tasks runnable between the measurements, {stolen:.1%} of the time stolen")
        loud = [what for what, is_loud in (("other tasks", others > OTHERS), ("stolen time", stolen > STOLEN)) if is_loud]
        return "; ".join(notes) + (f". **Not quiet**: {' and '.join(loud)}" if loud else "")
