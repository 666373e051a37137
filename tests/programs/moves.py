import socket, sys
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
c = socket.create_connection(s.getsockname()); d, _ = s.accept()
for line in sys.stdin:
 for i in range(100):
  c.sendall(b'x' * 1000)
  assert len(d.recv(1000, socket.MSG_WAITALL)) == 1000
 print('done', flush=True)
