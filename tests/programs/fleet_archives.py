"""Writes archives of hosts with known samples: fleet_archives.py DIRECTORY < BUCKETS: a line `LOW-HIGH` for each bucket, in microseconds.

Each of 20 hosts reads from two disks; disk sdb of host07 is slow. One archive has a host whose agent restarts in the middle. Prints the
samples of all hosts together, one a line.
"""
import bisect
import os
import random
import sys
from pcp import pmi
import cpmapi as api

directory = sys.argv[1]
names = sys.stdin.read().split()
highs = [float(name.split('-')[1]) for name in names]
metric = 'bcc.disk.dev.read.total.bucket'
for host in range(20):
    # One process for each, since pmi does not let go of an archive before its end.
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        continue
    random.seed(host)
    log = pmi.pmiLogImport('%s/host%02d' % (directory, host))
    log.pmiSetHostname('host%02d' % host)
    log.pmiSetTimezone('UTC')
    indom = log.pmiInDom(149, 1)
    log.pmiAddMetric(metric, log.pmiID(149, 1, 1), api.PM_TYPE_U64, indom, api.PM_SEM_COUNTER, log.pmiUnits(0, 0, 1, 0, 0, 0))
    disks = ('sda', 'sdb')
    for disk in disks:
        for at, name in enumerate(names):
            log.pmiAddInstance(indom, '%s::%s' % (name, disk), at * 2 + disks.index(disk))
    counts = {disk: [1000] * len(names) for disk in disks}
    for minute in range(10):
        if minute:
            if host == 3 and minute == 5:
                counts = {disk: [0] * len(names) for disk in disks}
            for disk in disks:
                for _ in range(200):
                    slow = host == 7 and disk == 'sdb' and random.random() < 0.5
                    sample = random.uniform(200000, 400000) if slow else random.lognormvariate(6, 1)
                    sample = max(int(sample), 1)
                    print(sample)
                    counts[disk][bisect.bisect_left(highs, sample)] += 1
        for disk in disks:
            for name, count in zip(names, counts[disk]):
                log.pmiPutValue(metric, '%s::%s' % (name, disk), '%d' % count)
        log.pmiWrite(1790000000 + 60 * minute, 0)
    log.pmiEnd()
    sys.stdout.flush()
    os._exit(0)
