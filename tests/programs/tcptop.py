# == sockets
# Sockets `c` and `d` that are connected; `ports` are the client's and the server's.
s = socket.socket(FAMILY)
s.bind((LISTEN, 0)); s.listen()
ports = s.getsockname()[1]
c = socket.socket(socket.AF_INET if '.' in HOST else FAMILY); c.connect((HOST, ports))
d, _ = s.accept()
ports = c.getsockname()[1], ports
def get(n): assert len(d.recv(n, socket.MSG_WAITALL)) == n

# == both ends
step(*ports)
for i in range(10): c.send(b'x' * 1000)
for i in range(5): d.recv(100, socket.MSG_PEEK)
get(10000)
d.send(b'y' * 77)
assert len(c.recv(1000)) == 77
step('moved')

# == two intervals
for n in (3000, 40):
 step(*ports)
 c.send(b'x' * n)
 get(n)
step('moved')

# == after a reset
c.send(b'x' * 500)
c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
c.close()
step(*ports)
say(len(d.recv(1000)))
step()

# == one way
step(*ports)
c.send(b'x' * 500)
get(500)
step('moved')
