import mmap, os, sys, threading
disk, count, roots = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), int(sys.argv[2]), set(sys.argv[3:])
page = mmap.mmap(-1, 4096)
groups = [[f'{root}/corebcc-{os.getpid()}-{number}' for root in roots] for number in range(count)]
[os.mkdir(directory) for group in groups for directory in group]
def enter(directories):
    for directory in directories:
        with open(f'{directory}/cgroup.procs', 'w') as procs:
            procs.write(str(os.getpid()))
threading.Thread(target=lambda: (sys.stdin.read(), done.set())).start()
done, rounds = threading.Event(), 0
while not done.is_set():
    for group in groups:
        enter(group)
        os.preadv(disk, [page], 0)
        done.wait(0.0001)
    rounds += 1
    print(rounds, flush=True)
enter(roots)
[os.rmdir(directory) for group in groups for directory in group]
