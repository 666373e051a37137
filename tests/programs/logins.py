# Sessions that begin in known ways: with a session of audit, on a terminal, with both and with neither.
# == sessions
import pty, subprocess
def ended(pid):
 if os.waitpid(pid, 0)[1]: raise SystemExit('a child failed')
def run(environment={}):
 os.execve('/bin/sh', ['sh', '-c', '/bin/true; /bin/true'], dict(environment, PATH=os.environ['PATH']))
def begin_session():
 with open('/proc/self/loginuid', 'w') as loginuid: loginuid.write('65534')
def on_terminal(work):
 pid, terminal = pty.fork()
 if not pid:
  work()
  os.write(1, os.ttyname(1).encode())
  run()
 name = os.read(terminal, 100).decode().removeprefix('/dev/')
 try:
  while os.read(terminal, 100): pass
 except OSError: pass
 ended(pid)
 os.close(terminal)
 return name
def forked(*works):
 pid = os.fork()
 if not pid:
  for work in works: work()
  os._exit(0)
 ended(pid)
step('ready')
try: forked(begin_session)
except (SystemExit, OSError): step('refused')
else: step('allowed')
# a session of audit, without a terminal; the address is behind strings of all lengths
long = {'A' * 40: 'x' * 22, 'B' * 62: '', 'C' * 500: 'SSH_CONNECTION=198.51.100.1 1 2 3', 'SSH_CONNECTION': '192.0.2.7 50000 192.0.2.1 22'}
for _ in range(5): forked(begin_session, lambda: run(long))
step(5)
# a terminal, without a session of audit; then with one
step(*[on_terminal(lambda: None) for _ in range(3)])
step(on_terminal(begin_session))
# neither; and a user
forked(os.setsid, run)
forked(run)
forked(begin_session, lambda: os.setuid(65534), run)
step('done')
# a program that opens a terminal for another
subprocess.run(['script', '-qec', 'true', '/dev/null'], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
step('script')
# what init starts on a terminal
ending, held = os.pipe()
pid = os.fork()
if not pid:
 first = os.getpid()
 if os.fork(): os._exit(0)
 while os.getppid() == first: time.sleep(0.01)
 os.set_inheritable(held, True)
 os.setsid()
 terminal, line = pty.openpty()
 os.open(os.ttyname(line), os.O_RDWR)
 say(os.getppid())
 run()
os.waitpid(pid, 0)
os.close(held)
os.read(ending, 1)
step('init')
# == flood
def session(uid):
 pid = os.fork()
 if not pid:
  with open('/proc/self/loginuid', 'w') as loginuid: loginuid.write(str(uid))
  os.setuid(uid)
  os.execv('/bin/true', ['true'])
 if os.waitpid(pid, 0)[1]: raise SystemExit('refused')
step('ready')
session(0)
for _ in range(300): session(65534)
step('done')
