# == begin
import ctypes, mmap, os, struct, sys, time
def ready(): print('ready', flush=True)
def wait():
    ready()
    time.sleep(1000)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mmap.restype = ctypes.c_long
def execute(file, length=4096, offset=0, times=1):
    for _ in range(times):
        assert libc.mmap(None, length, 5, 2, file.fileno(), offset) != -1
    wait()

# == own code
# Runs for ever in memory of its own, for which it makes the perf map that is asked for.
kind = sys.argv[1]
flags = mmap.MAP_SHARED if kind == 'shared' else mmap.MAP_PRIVATE
code = mmap.mmap(-1, 4096, flags=flags | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b'\xeb\xfe' if os.uname().machine == 'x86_64' else b'\x00\x00\x00\x14')
start = ctypes.addressof(ctypes.c_char.from_buffer(code))
path = '/tmp/perf-%d.map' % os.getpid()
text = '%x 1000 hostile_%s\n' % (start, 'x' * 100_000)
if kind == 'fifo': os.mkfifo(path)
elif kind == 'sparse': os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40)
elif kind in ('own', 'shared'): open(path, 'w').write(text)
elif kind == 'foreign': open(os.getcwd() + '/text', 'w').write(text)
else: os.symlink(kind, path)
ready()
if kind == 'foreign':
    while not os.path.exists(path): time.sleep(.01)
ctypes.CFUNCTYPE(None)(start)()

# == elf
# Makes an ELF file from its first section, the number of its sections, the data behind, and its length.
def elf(sections, size, notes, length):
    ident = b'\x7fELF' + bytes([2, 1 if sys.byteorder == 'little' else 2, 1]) + bytes(9)
    machine = {'x86_64': 62, 'aarch64': 183}[os.uname().machine]
    table = 64 + 56
    at = table + 64 * sections
    header = ident + struct.pack('=HHIQQQIHHHHHH', 3, machine, 1, 0, 64, table, 0, 64, 56, 1, 64, sections, 0)
    program = struct.pack('=IIQQQQQQ', 1, 5, 0, 0, 0, 1 << 40, 1 << 40, 4096)
    section = struct.pack('=IIQQQQIIQQ', 0, 7, 0, 0, at, size or len(notes), 0, 0, 1, 0)
    file = open('libjvm.so', 'wb+')
    file.write(header + program + section * sections + notes)
    file.truncate(max(length, file.tell()))
    file.flush()
    return file

# == fifty thousand
# A page of code with probe locations, each with a note for calls of a method.
def note(place):
    content = struct.pack('=QQQ', place, 0, 0) + b'hotspot\0method__entry\0\0'
    content += bytes(-len(content) % 4)
    return struct.pack('=III', 8, len(content), 3) + b'stapsdt\0' + content
code = (b'\x90' if os.uname().machine == 'x86_64' else b'\x1f\x20\x03\xd5')
notes = b''.join(note(4096 * 2000 + place * len(code)) for place in range(50000))
file = elf(1, 0, notes, 4096 * 2051)
os.pwrite(file.fileno(), code * 50000, 4096 * 2000)
execute(file, 4096 * 50, 4096 * 2000)

# == children
children = int(sys.argv[1])
for child in range(children):
    if os.fork() == 0: time.sleep(1000)
stat = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
field = lambda number: int(stat[number - 3])
libc.sbrk.restype = ctypes.c_void_p
memory = mmap.mmap(-1, 100 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
layout = struct.pack('=12QIi', field(26), field(27), field(45), field(46), field(47), libc.sbrk(0), field(28), start, start + (100 << 30),
    field(50), field(51), 0, 0, -1)
moved = libc.prctl(35, 14, ctypes.c_char_p(layout), ctypes.c_ulong(len(layout)), 0)
if moved != 0: print('prctl:', os.strerror(ctypes.get_errno()), file=sys.stderr)
wait()

# == no answer
# A file system of nobody that answers the first read with an error, after which the kernel holds the lock of the reader's memory during
# the second one, which gets no answer.
import socket, threading
fuse = os.open('/dev/fuse', os.O_RDWR)
options = 'fd=%d,rootmode=40000,user_id=65534,group_id=65534' % fuse
libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
os.mkdir('mount')
assert libc.mount(b'none', b'mount', b'fuse', 0, options.encode()) == 0, os.strerror(ctypes.get_errno())
os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
attributes = struct.pack('=6Q10I', 2, 4096, 8, 0, 0, 0, 0, 0, 0, 0o100644, 1, 65534, 65534, 0, 4096, 0)
root = struct.pack('=6Q10I', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 1, 65534, 65534, 0, 4096, 0)
def serve():
    reads = 0
    while True:
        request = os.read(fuse, 1 << 20)
        (length, opcode, unique, node) = struct.unpack('=IIQQ', request[:24])
        answer, error = b'', 0
        if opcode == 26: answer = struct.pack('=IIIIHHIIHHI7I', 7, 31, 65536, 0, 12, 9, 65536, 1, 0, 0, 0, *[0] * 7)
        elif opcode == 1: answer = struct.pack('=4QII', 2, 0, 1000, 1000, 0, 0) + attributes
        elif opcode == 3: answer = struct.pack('=QII', 1000, 0, 0) + (root if node == 1 else attributes)
        elif opcode == 14: answer = struct.pack('=QII', 1, 0, 0)
        elif opcode == 15 and reads == 0: reads, error = 1, -5
        elif opcode in (2, 15, 36, 42): continue
        else: error = -38
        os.write(fuse, struct.pack('=IiQ', 16 + len(answer), error, unique) + answer)
libc.prctl(4, 1, 0, 0, 0) # as any process has it that root has not started
if os.fork() == 0: serve()
os.close(fuse)
file = os.open('mount/file', os.O_RDONLY)
start = libc.mmap(None, 4096, 1, 2, file, 0)
os.close(file)
byte = ctypes.create_string_buffer(1)
libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def fault():
    time.sleep(.5)
    libc.memcpy(byte, start, 1)
def wait_for_lock():
    time.sleep(1)
    libc.mmap(None, 4096, 1, 0x22, -1, 0)
for work in (fault, wait_for_lock): threading.Thread(target=work, daemon=True).start()
time.sleep(1.5)
ready()
while True:
    datagrams.sendto(b'x', ('127.0.0.1', 9))
    time.sleep(.01)
