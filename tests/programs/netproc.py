# == sockets
# TCP sockets `c` and `d` that are connected, and UDP sockets `u` and `v`, of `family` at `host`.
s = socket.socket(family)
s.bind((host, 0)); s.listen()
c = socket.socket(family); c.connect(s.getsockname())
d, _ = s.accept()
u = socket.socket(family, socket.SOCK_DGRAM); u.bind((host, 0))
v = socket.socket(family, socket.SOCK_DGRAM); v.bind((host, 0))
def get(n): assert len(d.recv(n, socket.MSG_WAITALL)) == n

# == every way
import tempfile
step('connected')
for i in range(10): c.send(b'x' * 1000)
get(10000)
step('send')
for i in range(10): os.write(c.fileno(), b'x' * 100)
get(1000)
step('write')
for i in range(10): os.writev(c.fileno(), [b'x' * 100, b'y' * 23])
get(1230)
step('writev')
for i in range(10): c.sendmsg([b'x' * 50, b'y' * 50])
get(1000)
step('sendmsg')
f = tempfile.TemporaryFile(); f.write(b'z' * 5000); f.flush()
assert os.sendfile(c.fileno(), f.fileno(), 0, 5000) == 5000
get(5000)
step('sendfile')
c.send(b'x' * 500)
for i in range(7): d.recv(500, socket.MSG_PEEK)
get(500)
step('peek')
for i in range(10):
 u.sendto(b'x' * 300, v.getsockname())
 v.recv(2000)
step('datagrams')
for i in range(5):
 u.sendto(b'', v.getsockname())
 v.recv(2000)
step('empty')
u.connect(v.getsockname())
u.send(b'x' * 1000)
v.recv(400)
step('cut')
c.shutdown(socket.SHUT_WR)
assert d.recv(10) == b''
step('end')

# == cut short
step('connected')
c.setblocking(False)
calls = sent = 0
while True:
 calls += 1
 try: sent += c.send(b'x' * 1000000)
 except BlockingIOError: break
step(calls, sent)

# == threads
step('connected')
def work():
 for i in range(250): u.sendto(b'x' * 10, v.getsockname())
 time.sleep(0.2)
ts = [threading.Thread(target=work) for i in range(8)]
[t.start() for t in ts]
[t.join() for t in ts]
step('done')

# == datagram
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.sendto(b'x' * 77, ('127.0.0.1', 9))
say('sent')

# == datagram, then another program
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.sendto(b'x' * 77, ('127.0.0.1', 9))
say('sent')
os.execv('/bin/sleep', ['another name', '0'])

# == datagrams of two programs
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def send(): u.sendto(b'x' * 10, ('127.0.0.1', 9))
send()
step('sent')
again = '''
import socket, sys
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(3):
 u.sendto(b'x' * 10, ('127.0.0.1', 9))
 print('again', flush=True)
 sys.stdin.readline()
'''
def main():
 send()
 os.execv('PYTHON', ['renamed program', '-c', again])
BY

# == datagrams of three programs
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def send(): u.sendto(b'x' * 10, ('127.0.0.1', 9))
t = threading.Thread(target=send)
t.start()
t.join()
step('sent')
again = """
import socket, os, sys
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.sendto(b'x' * 10, ('127.0.0.1', 9))
print(sys.argv[1], flush=True)
sys.stdin.readline()
os.execv('PYTHON', ['twice', '-c', sys.argv[2], 'second', ''])
"""
os.execv('PYTHON', ['once', '-c', again, 'first', again])

# == ten thousand threads
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
step('ready')
for i in range(2):
 for j in range(5000):
  t = threading.Thread(target=lambda: u.sendto(b'xyz', ('127.0.0.1', 9)))
  t.start()
  t.join()
 step('done')
