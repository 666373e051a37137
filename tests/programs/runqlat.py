# == ping pong
# Pairs of threads that pass a byte to and fro, without the interpreter's lock: system calls release it.
def pair(rounds):
 a, b = os.pipe(), os.pipe()
 def pong():
  for i in range(rounds):
   os.read(a[0], 1)
   os.write(b[1], b'x')
 t = threading.Thread(target=pong)
 t.start()
 for i in range(rounds):
  os.write(a[1], b'x')
  os.read(b[0], 1)
 t.join()
step('ready')
ts = [threading.Thread(target=pair, args=(5000,)) for i in range(2)]
[t.start() for t in ts]
[t.join() for t in ts]
step('done')

# == turns
a, b = os.pipe(), os.pipe()
def pong():
 while os.read(a[0], 1): os.write(b[1], b'x')
threading.Thread(target=pong, daemon=True).start()
def turn():
 for i in range(10000):
  os.write(a[1], b'x')
  os.read(b[0], 1)
turn()
step('ready')
turn()
step('done')
os._exit(0)

# == hogs
step('ready')
for i in range(HOGS):
 if not os.fork():
  end = time.monotonic() + 1.5
  while time.monotonic() < end: pass
  os._exit(0)
for i in range(HOGS): os.wait()
step('done')

# == delays
ts = []
pids = []
step('ready')
for i in range(HOGS):
 p = os.fork()
 if not p:
  end = time.monotonic() + 1
  while time.monotonic() < end: pass
  sys.stdin.readline()
  os._exit(0)
 pids.append(p)
time.sleep(1.5)
step(*[open('/proc/%d/schedstat' % p).read().split()[1] for p in pids])
os._exit(0)

# == sleeps
def sleeps():
 late = 0
 for i in range(500):
  until = time.monotonic_ns() + 2000000
  time.sleep(0.002)
  late += time.monotonic_ns() - until
 return late
step('ready')
for i in range(ATTEMPTS): step(sleeps() // 1000)
os._exit(0)

# == held up
# A thread that only its partner preempts, which takes the CPU for as long as it is told: the wait is known.
import struct
cpu = max(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cpu})
end, begin = os.pipe()
waits, is_set = os.pipe()
partner = os.fork()
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2 if partner else 3))
if not partner:
 os.close(begin)
 os.write(is_set, b'x')
 while True:
  told = os.read(end, 8)
  if not told: os._exit(0)
  until = time.monotonic_ns() + struct.unpack('q', told)[0]
  while time.monotonic_ns() < until: pass
os.read(waits, 1)
step('ready', cpu)
for i in range(100):
 os.write(begin, struct.pack('q', 6000000 if i % 10 == 0 else 300000))
step('done')
os._exit(0)
