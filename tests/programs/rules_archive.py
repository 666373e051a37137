"""Writes an archive of quantiles: rules_archive.py ARCHIVE < VALUES: lines `METRIC INSTANCE QUIET LOUD`, in microseconds, `-` for no instance.

Each has its quiet value for ten seconds and then its loud one for ten.
"""
import sys
from pcp import pmi
import cpmapi as api

log = pmi.pmiLogImport(sys.argv[1])
log.pmiSetHostname('archive')
log.pmiSetTimezone('UTC')
lines = [line.split() for line in sys.stdin]
indom = log.pmiInDom(149, 1)
instances, metrics = {}, {}
for metric, instance, _, _ in lines:
    if metric not in metrics:
        metrics[metric] = len(metrics)
        domain = api.PM_INDOM_NULL if instance == '-' else indom
        log.pmiAddMetric(metric, log.pmiID(149, 1, metrics[metric]), api.PM_TYPE_U64, domain, api.PM_SEM_INSTANT,
                         log.pmiUnits(0, 1, 0, 0, api.PM_TIME_USEC, 0))
    if instance != '-' and instance not in instances:
        instances[instance] = len(instances)
        log.pmiAddInstance(indom, instance, instances[instance])
for second in range(20):
    for metric, instance, quiet, loud in lines:
        log.pmiPutValue(metric, '' if instance == '-' else instance, quiet if second < 10 else loud)
    log.pmiWrite(1790000000 + second, 0)
log.pmiEnd()
