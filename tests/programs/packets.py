import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind((sys.argv[1] + 'p', 0))
for _ in range(200): s.send(bytes(12) + b'\x88\xb5' + bytes(50))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(300): u.sendto(b'x', ('127.0.0.1', 0xbac7))
