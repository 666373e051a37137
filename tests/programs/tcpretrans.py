# == server
s = socket.create_server(('::', 5000), family=socket.AF_INET6, dualstack_ipv6=True)
say('listening')
kept = []
while True: kept.append(s.accept())

# == client
c = socket.create_connection(('HOST', 5000))
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
word = step(c.getsockname()[1])
while word:
 if word == 'send': c.send(b'x'); c.send(b'y')
 if word == 'close':
  c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)) # a reset: closed at once
  c.close()
 word = step(total(c) if word != 'close' else 0)

# == connecting
c = socket.socket(); c.setblocking(False); c.connect_ex(('10.77.0.2', 5000))
step(c.getsockname()[1])
while step(total(c)): pass

# == accepting
s = socket.create_server(('10.77.0.1', 6000))
step('listening')
c = s.accept()[0]
step(c.getpeername()[1])
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
c.send(b'x'); c.send(b'y')
while step(total(c)): pass
