# Processes that end in known ways. The first line of each part is for the option `process`.
# == ends
# corebcc-exits
import platform, resource, signal
os.chdir(directory)
counts, signals = [0] * 5, {}
def ended(status, threads):
 counts[0] += 1
 counts[4] += threads
 if os.WIFSIGNALED(status):
  counts[2] += 1
  counts[3] += os.WCOREDUMP(status)
  name = signal.Signals(os.WTERMSIG(status)).name
  signals[name] = signals.get(name, 0) + 1
 else:
  counts[1] += os.WEXITSTATUS(status) != 0
def child(work):
 pid = os.fork()
 if not pid:
  work()
  os._exit(0)
 return pid
def threads(number, work):
 for each in [threading.Thread(target=work, daemon=True) for _ in range(number)]: each.start()
def only_main_ends():
 threads(1, lambda: (time.sleep(0.02), os._exit(5)))
 ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)
def together():
 end = ctypes.CDLL(None).syscall
 threads(3, lambda: end(60 if platform.machine() == 'x86_64' else 93, 4))
 end(60 if platform.machine() == 'x86_64' else 93, 3)
def dump():
 resource.setrlimit(resource.RLIMIT_CORE, (1 << 24, 1 << 24))
 os.abort()
step('ready')
kinds = [lambda: os._exit(0), lambda: os._exit(3), lambda: signal.pause(), lambda: os.abort()]
for number in range(1000):
 pid = child(kinds[number % 4])
 if number % 4 == 2: os.kill(pid, (signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1)[number % 3])
 ended(os.waitpid(pid, 0)[1], 1)
for work, times, each in ((lambda: (threads(3, signal.pause), os._exit(7)), 200, 4), (only_main_ends, 50, 2), (together, 50, 4), (dump, 3, 1)):
 for _ in range(times): ended(os.waitpid(child(work), 0)[1], each)
step(*counts)
step(*[name for pair in sorted(signals.items()) for name in pair])
for _ in range(2):
 pid = child(lambda: [None for _ in iter(lambda: time.process_time() < 1, False)])
 use = os.wait4(pid, 0)[2]
 step(pid, int((use.ru_utime + use.ru_stime) * 1e9))
fault = child(lambda: ctypes.string_at(0))
os.waitpid(fault, 0)
killed = child(signal.pause)
os.kill(killed, signal.SIGKILL)
os.waitpid(killed, 0)
step(fault, killed, os.getpid())
# == flood
# corebcc-exits
def flood(number):
 for _ in range(number):
  pid = os.fork()
  if not pid: os._exit(0)
  os.waitpid(pid, 0)
step('ready')
if not os.fork():
 flood(5)
 os._exit(0)
os.wait()
flood(3000)
step('done')
