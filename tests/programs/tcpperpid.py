# == server
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(100)
port = s.getsockname()[1]
def moved(n, back=0):
 c = socket.create_connection(('127.0.0.1', port)); d, _ = s.accept()
 c.sendall(b'x' * n); c.shutdown(socket.SHUT_WR)
 while d.recv(1 << 16): pass
 d.sendall(b'y' * back); d.close()
 while c.recv(1 << 16): pass
 c.close()

# == one way
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
c = socket.create_connection(s.getsockname()); d, _ = s.accept()
step('connected')
c.sendall(b'x' * 100000)
for i in range(3): d.recv(10, socket.MSG_PEEK)
assert len(d.recv(100000, socket.MSG_WAITALL)) == 100000
step('moved')

# == both families
def work(family, host):
 s = socket.socket(family); s.bind((host, 0)); s.listen()
 c = socket.socket(family); c.connect(s.getsockname()); d, _ = s.accept()
 for i in range(100):
  c.sendall(b'x' * 1000)
  assert len(d.recv(1000, socket.MSG_WAITALL)) == 1000
threads = [threading.Thread(target=work, args=a) for a in [(socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')] * 4]
for t in threads: t.start()
for t in threads: t.join()
step('moved')

# == two ports
step(port)
moved(1000, 30)
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(100)
port = s.getsockname()[1]
moved(5, 5)
step('moved')

# == thousands
for round in range(12):
 for i in range(250): moved(100, 10)
 step('moved')

# == two ways
step(port)
moved(1000, 30)
step('moved')

# == thread with a name
def work():
 open('/proc/thread-self/comm', 'w').write('a thread')
 moved(1000, 30)
t = threading.Thread(target=work)
t.start()
t.join()
say('moved')

# == open
import resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
say(most)
if most < 2 * CONNECTIONS + 100: sys.exit()
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(100)
pairs = []
for i in range(CONNECTIONS):
 c = socket.create_connection(s.getsockname()); d, _ = s.accept()
 pairs.append((c, d))
step('connected')
for c, d in pairs:
 c.sendall(b'x' * 3); assert len(d.recv(3, socket.MSG_WAITALL)) == 3
 d.sendall(b'y'); assert len(c.recv(1)) == 1
step('moved')
