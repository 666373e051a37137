import socket, sys, threading
def pair(turns, alive=lambda: True):
    listener = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    room = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    room.bind(('127.0.0.1', 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for turn in turns:
        client.send(b'x' * 1000)
        server.recv(1000, socket.MSG_WAITALL)
        if turn % 5 < 2:
            sender.sendto(b'y' * 500, room.getsockname())
            room.recv(500)
        if not alive():
            return
threads = [threading.Thread(target=pair, args=(range(25),)) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print('ready', flush=True)
sys.stdin.readline()
ended = threading.Event()
steady = threading.Thread(target=pair, args=(iter(int, 1), lambda: not ended.wait(0.002)))
steady.start()
sys.stdin.read()
ended.set()
