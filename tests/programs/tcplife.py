# == serve
# Sends 2000 bytes and waits for the end; its client sends 1000, reads all, and closes first.
d, _ = s.accept()
d.sendall(b'x' * 2000)
while d.recv(4096): pass
d.close()
step('closed')

# == ask
c.sendall(b'x' * 1000)
assert len(c.recv(2000, socket.MSG_WAITALL)) == 2000
step('held')
c.close()
step('closed')

# == open at once
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(100)
step(s.getsockname()[1])
ends = []
for i in range(SESSIONS):
 c = socket.create_connection(s.getsockname()); ends.append((c, s.accept()[0]))
step('open')
for c, d in ends: c.close(); d.close()
step('closed')

# == refused
s = socket.socket(); s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]; s.close()
c = socket.socket()
try: c.connect(('127.0.0.1', port))
except ConnectionRefusedError: pass
c.close()
step(port)

# == many
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(200)
def sessions(n):
 ports = []
 for i in range(n):
  c = socket.socket(); c.connect(s.getsockname()); d, _ = s.accept()
  ports.append(c.getsockname()[1])
  c.close(); d.close()
 return ports
step(s.getsockname()[1])
