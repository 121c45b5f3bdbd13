"""Uses many TCP sockets at once; half of them are half closed at random, and an end may be killed.

Arguments: the number of sockets, and `all`, `kill-server` or `kill-client`. Every surviving process
prints the number of connections and descriptors that it still has.
"""
import os, random, resource, select, signal, socket, sys, traceback

N, MODE = int(sys.argv[1]), sys.argv[2]
random.seed(7)
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit if limit > 0 else 1 << 20, limit))

def fds():
    return len(os.listdir('/proc/self/fd'))

def serve(listener, out):
    """Echoes until every peer has closed its direction, and reports what is left."""
    poller = select.epoll()
    listener.setblocking(False)
    poller.register(listener, select.EPOLLIN)
    conns, ended = {}, 0
    while ended < N:
        for fd, events in poller.poll():
            if fd == listener.fileno():
                while True:
                    try:
                        conn, _ = listener.accept()
                    except BlockingIOError:
                        break
                    conn.setblocking(False)
                    conns[conn.fileno()] = [conn, bytearray(), False]
                    poller.register(conn, select.EPOLLIN)
                continue
            conn, queue, eof = entry = conns[fd]
            try:
                if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and not eof:
                    data = conn.recv(65536)
                    queue += data
                    entry[2] = not data
                if queue:
                    sent = conn.send(queue)
                    del queue[:sent]
            except BlockingIOError:
                pass
            except OSError:
                entry[2] = True
                queue.clear()
            if entry[2] and not queue:
                poller.unregister(fd)
                conn.close()
                del conns[fd]
                ended += 1
            else:
                want = (0 if entry[2] else select.EPOLLIN) | (select.EPOLLOUT if queue else 0)
                poller.modify(fd, want)
    poller.close()
    os.write(out, f'{len(conns)} left, {fds()} descriptors\n'.encode())

listener = socket.socket()
listener.bind(('127.0.0.1', 0))
listener.listen(1024)
address = listener.getsockname()
r, w = os.pipe()
server = os.fork()
if server == 0:
    try:
        serve(listener, w)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
os.close(w)
listener.close()
client = os.fork()
if client == 0:
    def run():
        conns = []
        for i in range(N):
            conns.append(socket.create_connection(address))
        halves = set(random.sample(range(N), N // 2))
        for i, conn in enumerate(conns):
            conn.sendall(b'%d.' % i * random.randrange(1, 3000))
        sent = {}
        random.seed(9)
        for i, conn in enumerate(conns):
            data = b'more %d' % i * random.randrange(1, 2000)
            conn.sendall(data)
            sent[i] = data
            if i in halves:
                conn.shutdown(socket.SHUT_WR)
        if MODE == 'kill-server':
            os.kill(server, signal.SIGKILL)
        lost = 0
        order = list(range(N))
        random.shuffle(order)
        for i in order:
            conn, got = conns[i], b''
            if MODE == 'kill-client' and len(order) and i == order[N // 2]:
                os.kill(os.getpid(), signal.SIGKILL)
            if i not in halves:
                conn.shutdown(socket.SHUT_WR)
            try:
                while True:
                    data = conn.recv(1 << 16)
                    if not data:
                        break
                    got += data
            except OSError:
                lost += 1
                got = None
            if MODE != 'kill-server':
                assert got is not None and got.endswith(sent[i]) and got.startswith(b'%d.' % i), (i, got and len(got))
            conn.close()
        print('client:', 'some lost,' if lost else 'none lost,', fds(), 'descriptors', flush=True)
    try:
        run()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
_, status = os.waitpid(client, 0)
print('client ended with', status)
if MODE != 'kill-server':
    print('server:', os.read(r, 100).decode().strip())
_, status = os.waitpid(server, 0)
print('server ended with', status)
