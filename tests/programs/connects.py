# Connections that are opened in known ways. The first line of each part is for the option `process`.
# == outcomes
# corebcc-connects
def nobody(family):
 taken = socket.socket(family)
 taken.bind((local[family], 0))
 return taken
def connects(family, port, times):
 for _ in range(times):
  with socket.socket(family) as one: one.connect_ex((local[family], port))
local = {socket.AF_INET: '127.0.0.1', socket.AF_INET6: '::1'}
listeners = {}
for family in local:
 listener = socket.socket(family)
 listener.bind((local[family], 0))
 listener.listen(1000)
 listeners[family] = listener
closed = {family: nobody(family) for family in local}
step('ready')
for family in local:
 connects(family, listeners[family].getsockname()[1], 250)
 connects(family, closed[family].getsockname()[1], 50)
step(os.getpid(), listeners[socket.AF_INET].getsockname()[1], closed[socket.AF_INET6].getsockname()[1])
# == unanswered
# corebcc-connects
import errno, select
def starts(address, number, tries=6):
 waiting = [socket.socket() for _ in range(number)]
 for one in waiting:
  one.setsockopt(socket.IPPROTO_TCP, 7, tries) # TCP_SYNCNT
  one.setblocking(False)
  one.connect_ex(address)
 return waiting
def results(waiting):
 poll = select.poll()
 for one in waiting: poll.register(one, select.POLLOUT)
 left, errors = {one.fileno(): one for one in waiting}, {}
 while left:
  for fd, _ in poll.poll():
   error = left.pop(fd).getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
   errors[error] = errors.get(error, 0) + 1
   poll.unregister(fd)
 return errors
there = ('10.77.0.2', 5000)
step('ready')
said = results(starts(('10.88.0.1', 9), 5))
step(said.get(errno.EHOSTUNREACH, 0), len(said))
waiting = starts(there, 20, 1)
for one in starts(there, 3): one.close()
said = results(waiting)
step(said.get(errno.ETIMEDOUT, 0), len(said))
begin = time.monotonic_ns()
late = starts(there, 1)
step('sent')
said = results(late)
step(said.get(0, 0), time.monotonic_ns() - begin)
# == users
# corebcc-connects
listeners = []
for _ in range(2):
 listener = socket.socket()
 listener.bind(('127.0.0.1', 0))
 listener.listen(1000)
 listeners.append(listener)
def connects(at, times):
 for _ in range(times): socket.create_connection(listeners[at].getsockname()).close()
step(listeners[0].getsockname()[1])
if not os.fork():
 os.setuid(65534)
 connects(0, 30)
 connects(1, 7)
 os._exit(0)
os.wait()
connects(0, 20)
step('done')
# == flood
# corebcc-connects
listener = socket.socket()
listener.bind(('127.0.0.1', 0))
listener.listen(1000)
closed = socket.socket()
closed.bind(('127.0.0.1', 0))
def refused(times):
 for _ in range(times): socket.socket().connect_ex(closed.getsockname())
step('ready')
if not os.fork():
 socket.create_connection(listener.getsockname())
 os._exit(0)
os.wait()
refused(10000)
step(os.getpid())
# == networks
# corebcc-connects
listener, six = socket.create_server(('0.0.0.0', 0), backlog=1000), socket.create_server(('::1', 0), family=socket.AF_INET6)
port = listener.getsockname()[1]
taken = socket.socket()
taken.bind(('127.0.1.9', 0))
def connects(family, address, port, times):
 for _ in range(times):
  with socket.socket(family) as one: one.connect_ex((address, port))
step('ready')
connects(socket.AF_INET, '127.0.0.1', port, 30)
connects(socket.AF_INET, '127.0.1.9', port, 20)
connects(socket.AF_INET, '127.0.1.9', taken.getsockname()[1], 5)
connects(socket.AF_INET6, '::ffff:127.0.1.9', port, 7)
connects(socket.AF_INET6, '::1', six.getsockname()[1], 10)
step('done')
