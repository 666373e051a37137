import csv, sys
from pcp import pmi, pmapi
import cpmapi as api
table, archive, host, zone = sys.argv[1:]
log = pmi.pmiLogImport(archive)
log.pmiSetHostname(host)
log.pmiSetTimezone(zone)
types = {'32': api.PM_TYPE_32, 'U32': api.PM_TYPE_U32, 'U64': api.PM_TYPE_U64, 'STRING': api.PM_TYPE_STRING}
sems = {'counter': api.PM_SEM_COUNTER, 'instant': api.PM_SEM_INSTANT}
known = {}
for row in csv.DictReader(open(table), delimiter='\t', quoting=csv.QUOTE_NONE):
    domain, cluster, item = map(int, row['pmid'].split('.'))
    units = log.pmiUnits(*eval(row['units_tuple']))
    indom = api.PM_INDOM_NULL
    if row['indom'] != 'PM_INDOM_NULL':
        indom = log.pmiInDom(domain, int(row['indom_serial']))
    log.pmiAddMetric(row['metric'], log.pmiID(domain, cluster, item), types[row['type']], indom, sems[row['semantics']], units)
    form = row['instance_name_form']
    name, number = ('0-1', 0) if form.startswith('LOW') else ('000001 /sbin/init', 1) if form.startswith('PID A') else ('0', 0)
    if indom != api.PM_INDOM_NULL and indom not in known:
        log.pmiAddInstance(indom, name, number)
        known[indom] = name
    log.pmiPutValue(row['metric'], known.get(indom, ''), 'text' if row['type'] == 'STRING' else '1')
log.pmiWrite(1500000000, 0)
log.pmiEnd()
