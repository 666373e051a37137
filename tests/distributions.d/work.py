"""Something for every module to count, until it is killed: garbage of a runtime that has probes, TCP both ways, a connection that nobody
answers, programs, and writes that reach the disk. Argument: a file to write."""

import gc
import socket
import subprocess
import sys
import time

sys.setprofile(lambda *event: None)  # CPython 3.11 passes its probe of calls only while it traces
unanswered = socket.socket()
unanswered.setblocking(False)
unanswered.connect_ex(("192.0.2.1", 9))
listener = socket.create_server(("127.0.0.1", 0))
while True:
    with socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        for _ in range(10):
            client.sendall(b"there")
            server.recv(5)
            server.sendall(b"back")
            client.recv(4)
            subprocess.run(["dd", "if=/dev/zero", "bs=4k", "count=1", "conv=fsync", f"of={sys.argv[1]}"], stderr=subprocess.DEVNULL)
            gc.collect()
            time.sleep(0.05)
        server.close()
