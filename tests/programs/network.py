"""The services of docs/network.md: `web` asks `api` over a link that takes 20 ms, a name server, and reports to `stats`, which reads too slowly."""

import ctypes, os, pathlib, signal, socket, struct, sys, threading, time

HERE = pathlib.Path(__file__).parent
exec(HERE.joinpath("delays.py").read_text().split("# == link\n")[1].split("# == sessions\n")[0])

API, NAMES, STATS = ("10.78.0.2", 5000), ("127.0.0.77", 53), ("127.0.0.1", 8125)


def called(name):
    """Gives the process its name."""
    libc.prctl(15, name.encode())  # PR_SET_NAME
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def api():
    """Answers each request; every fourth session it ends by a reset."""
    called("api")
    listener = socket.create_server(API, backlog=100)
    served = 0
    while True:
        one = listener.accept()[0]
        served += 1
        one.sendall(one.recv(100))
        one.recv(100)
        if served % 4 == 0:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()


def names():
    """A name server that fails for every seventh question and never answers every tenth."""
    called("names")
    server = socket.socket(type=socket.SOCK_DGRAM)
    server.bind(NAMES)
    for asked in range(1 << 30):
        question, who = server.recvfrom(512)
        if asked % 10 == 9:
            continue
        time.sleep(0.002)
        code = 2 if asked % 7 == 6 else 0
        server.sendto(question[:2] + struct.pack("!H", 0x8180 | code) + question[4:], who)


def stats():
    """Reads ten datagrams a second."""
    called("stats")
    server = socket.socket(type=socket.SOCK_DGRAM)
    server.bind(STATS)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    while True:
        server.recv(512)
        time.sleep(0.1)


def web():
    """Asks for a name, calls the service, reports."""
    called("web")
    resolver, reports = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
    resolver.settimeout(0.1)
    for number in range(1 << 30):
        question = struct.pack("!HHHHHH", number & 0xFFFF, 0x100, 1, 0, 0, 0) + b"\x03api\x00\x00\x01\x00\x01"
        resolver.sendto(question, NAMES)
        try:
            resolver.recv(512)
        except TimeoutError:
            pass
        try:
            with socket.create_connection(API) as one:
                one.sendall(b"ping")
                one.recv(100)
                one.sendall(b"bye")
                one.recv(1)
        except ConnectionResetError:
            pass
        for _ in range(10):
            reports.sendto(b"requests:1|c", STATS)


def fork(work):
    """Starts a service."""
    child = os.fork()
    if child == 0:
        work()
    return child


enter()
there = end("10.78.0.2/24")
children = [fork(api)]
enter()
here = end("10.78.0.1/24")
delay[0] = 0.02
threading.Thread(target=relay, args=(here, there), daemon=True).start()
children += [fork(work) for work in (names, stats)]
time.sleep(0.5)
children.append(fork(web))
try:
    time.sleep(float(sys.argv[1]))
finally:
    for child in children:
        os.kill(child, signal.SIGKILL)
