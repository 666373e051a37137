import struct
os.chdir(directory)
base, head = 0x400000, 64 + 56
with open('n', 'wb') as file:
 file.write(struct.pack('<16s2HI3QI6H', b'\x7fELF\x02\x01\x01', 2, machine, 1, base + head, 64, 0, 0, 64, 56, 1, 0, 0, 0))
 file.write(struct.pack('<2I6Q', 1, 5, 0, base, base, head + len(code), head + len(code), 4096) + code)
os.chmod('n', 0o755)
for i in range(18000):
 os.link('n', 'corebcc%d' % i)
 os.waitpid(os.posix_spawn('corebcc%d' % i, ['n'], {}), 0)
 os.unlink('corebcc%d' % i)
