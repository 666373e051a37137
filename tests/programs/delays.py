# Connections between two network namespaces with a known delay between them: what goes there comes late, what comes back does not.
# == link
import ctypes, fcntl, heapq, os, select, struct, subprocess, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def enter():
 if libc.unshare(0x40000000): raise OSError(ctypes.get_errno(), 'unshare') # CLONE_NEWNET
def end(address):
 device = os.open('/dev/net/tun', os.O_RDWR)
 fcntl.ioctl(device, 0x400454ca, struct.pack('16sH', b'delay', 0x1001)) # TUNSETIFF, IFF_TUN | IFF_NO_PI
 for command in (f'addr add {address} dev delay', 'link set delay up', 'link set lo up'):
  subprocess.run(['ip', *command.split()], check=True)
 return device
def relay(here, there):
 late, number = [], 0
 while True:
  wait = max(0, late[0][0] - time.monotonic()) if late else None
  for device in select.select([here, there], [], [], wait)[0]:
   packet = os.read(device, 65536)
   if device == there: os.write(here, packet)
   else: heapq.heappush(late, (time.monotonic() + delay[0], number := number + 1, packet))
  while late and late[0][0] <= time.monotonic(): os.write(there, heapq.heappop(late)[2])
delay = [0]
# == sessions
enter()
there = end('10.78.0.2/24')
listener = socket.create_server(('10.78.0.2', 5000), backlog=100)
def serve():
 while True:
  other = listener.accept()[0]
  other.sendall(other.recv(100))
  other.recv(100)
  other.close()
threading.Thread(target=serve, daemon=True).start()
enter()
here = end('10.78.0.1/24')
threading.Thread(target=relay, args=(here, there), daemon=True).start()
order = step('ready')
while order:
 delay[0], times = int(order.split()[0]) / 1000, int(order.split()[1])
 begin = time.monotonic_ns()
 for _ in range(times):
  with socket.create_connection(('10.78.0.2', 5000)) as one:
   one.sendall(b'ping')
   one.recv(100)
 order = step(time.monotonic_ns() - begin)
