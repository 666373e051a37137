"""A service with troubles, as docs/connections.md shows them: connections.py SECONDS

`shop` answers a request with three connections of its own: to `stock` (port 5001), which lets each wait for up to 50 ms, to `prices` (5002), which
resets one in four, and to a cache (5003) that is not there. Each time it looks for a file that is missing. `audit` (5004) never accepts:
`report` waits for it. All are on the loopback interface."""

import os
import socket
import struct
import sys
import time


def named(role):
    """Starts this program in a role, under the name of the role."""
    path, home = f"/tmp/{role}", {"PYTHONHOME": sys.base_prefix}
    return os.spawnve(os.P_NOWAIT, sys.executable, [path, __file__, sys.argv[1], role], os.environ | home)


def listener(port, backlog=64):
    server = socket.create_server(("127.0.0.1", port), backlog=backlog)
    server.settimeout(0.5)
    return server


def serve(server, late, resets):
    """Accepts so many seconds late, and resets one of so many connections."""
    served = 0
    while time.monotonic() < END:
        time.sleep(late)
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        served += 1
        with connection:
            connection.recv(64)
            if resets and served % resets == 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                connection.sendall(b"answer")


def ask(port):
    with socket.socket() as connection:
        connection.settimeout(3)
        try:
            connection.connect(("127.0.0.1", port))
            connection.sendall(b"question")
            connection.recv(64)
        except OSError:
            pass


def shop():
    while time.monotonic() < END:
        for port in 5001, 5002, 5003:
            ask(port)
        try:
            os.close(os.open("/etc/shop/prices.conf", os.O_RDONLY))
        except FileNotFoundError:
            pass
        time.sleep(0.02)


def report():
    while time.monotonic() < END:
        ask(5004)


ROLES = {
    "stock": lambda: serve(listener(5001), 0.05, 0),
    "prices": lambda: serve(listener(5002), 0, 4),
    "audit": lambda: (listener(5004, backlog=0), time.sleep(float(sys.argv[1]))),
    "shop": shop,
    "report": report,
}
END = time.monotonic() + float(sys.argv[1])
if len(sys.argv) > 2:
    with open("/proc/self/comm", "w", encoding="ascii") as comm_file:
        comm_file.write(sys.argv[2])
    ROLES[sys.argv[2]]()
else:
    for role in ROLES:
        named(role)
    for role in ROLES:
        os.wait()
