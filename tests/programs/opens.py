# Opens of files in known ways. The first line of each part is for the option `process`.
# == users
# corebcc-opens
step('ready')
if not os.fork():
 os.setuid(65534)
 for _ in range(30): os.close(os.open('/dev/null', os.O_RDONLY))
 os._exit(0)
os.wait()
for _ in range(20): os.close(os.open('/dev/null', os.O_RDONLY))
step('done')
# == flood
# corebcc-opens
def opens(path, number):
 for _ in range(number): os.close(os.open(path, os.O_RDONLY))
step('ready')
if not os.fork():
 opens('/dev/zero', 5)
 os._exit(0)
os.wait()
opens('/dev/null', 100000)
step(os.getpid())
