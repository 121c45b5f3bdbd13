/* Tests sockets over RDMA as a program of rsockets uses them; with an argument, in one process
 * only. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "check.h"

#define MANY 500
#define CHUNK 60000
#define ROUNDS 40

static struct sockaddr_in address;

static int listening(int backlog)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof address;

	CHECK(fd >= 0);
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	address.sin_port = 0;
	CHECK(rbind(fd, (struct sockaddr *) &address, sizeof address) == 0);
	CHECK(rlisten(fd, backlog) == 0);
	CHECK(rgetsockname(fd, (struct sockaddr *) &address, &len) == 0);
	CHECK(len == sizeof address && address.sin_port != 0);
	return fd;
}

/* Returns a bound socket that keeps a port on which nothing listens. */
static int bound_only(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof address;

	address.sin_port = 0;
	CHECK(fd >= 0 && rbind(fd, (struct sockaddr *) &address, sizeof address) == 0);
	CHECK(rgetsockname(fd, (struct sockaddr *) &address, &len) == 0);
	return fd;
}

static int connected(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP);

	CHECK(fd >= 0);
	CHECK(rconnect(fd, (struct sockaddr *) &address, sizeof address) == 0);
	return fd;
}

/* Creates both ends of a connection in this process; the library accepts for the listener. */
static void pair(int ends[2])
{
	int listener = listening(4);

	ends[0] = connected();
	ends[1] = raccept(listener, NULL, NULL);
	CHECK(ends[1] >= 0);
	CHECK(rclose(listener) == 0);
}

static void close_pair(int ends[2])
{
	CHECK(rclose(ends[0]) == 0);
	CHECK(rclose(ends[1]) == 0);
}

static int ready(int fd, int events)
{
	struct pollfd entry = { .fd = fd, .events = events };
	int count = rpoll(&entry, 1, 10000);

	CHECK(count == (entry.revents != 0));
	return entry.revents;
}

static void addresses_and_bad_descriptors(void)
{
	struct sockaddr_in local, peer;
	socklen_t len = sizeof local;
	char byte = 1;
	int ends[2], pipes[2];

	pair(ends);
	CHECK(rgetpeername(ends[0], (struct sockaddr *) &peer, &len) == 0);
	CHECK(peer.sin_port == address.sin_port);
	CHECK(rgetsockname(ends[1], (struct sockaddr *) &local, &len) == 0);
	CHECK(local.sin_port == address.sin_port);
	CHECK(rconnect(ends[0], (struct sockaddr *) &address, sizeof address) == -1 && errno == EISCONN);
	CHECK(rsendto(ends[0], &byte, 1, 0, (struct sockaddr *) &address, sizeof address) == -1 && errno == EISCONN);
	CHECK(rbind(ends[0], (struct sockaddr *) &address, 3) == -1 && errno == EINVAL);
	/* The sum of the two lengths overflows, and the other buffer has no memory. */
	struct iovec parts[2] = { { &byte, SIZE_MAX }, { &byte, 2 } }, nowhere = { NULL, 1 };
	CHECK(rwritev(ends[0], parts, 2) == -1 && errno == EINVAL);
	CHECK(rreadv(ends[1], parts, 2) == -1 && errno == EINVAL);
	CHECK(rwritev(ends[0], &nowhere, 1) == -1 && errno == EFAULT);
	close_pair(ends);
	CHECK(rsend(ends[0], &byte, 1, 0) == -1 && errno == EBADF);
	CHECK(rclose(ends[0]) == -1 && errno == EBADF);
	CHECK(pipe(pipes) == 0);
	CHECK(rrecv(pipes[0], &byte, 1, 0) == -1 && errno == EBADF);
	CHECK(rpoll(NULL, 1, 0) == -1 && errno == EFAULT);
	close(pipes[0]);
	close(pipes[1]);
	CHECK(rsocket(AF_UNIX, SOCK_STREAM, 0) == -1 && errno == EOPNOTSUPP);
	CHECK(rsocket(AF_INET, SOCK_RAW, 0) == -1 && errno == EOPNOTSUPP);

	/* Nothing listens on the port, and no device reaches the address. */
	int bound = bound_only(), fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(rsend(fd, &byte, 1, 0) == -1 && errno == ENOTCONN);
	CHECK(rconnect(fd, (struct sockaddr *) &address, sizeof address) == -1 && errno == ECONNREFUSED);
	CHECK(rclose(fd) == 0);
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(rclose(bound) == 0);
	local.sin_addr.s_addr = inet_addr("192.0.2.1");
	CHECK(rbind(fd, (struct sockaddr *) &local, sizeof local) == -1 && errno == EADDRNOTAVAIL);
	CHECK(rclose(fd) == 0);
}

static void half_close_and_end(void)
{
	char buffer[16];
	int ends[2];

	pair(ends);
	CHECK(rsend(ends[0], "question", 8, 0) == 8);
	CHECK(rshutdown(ends[0], SHUT_WR) == 0);
	CHECK(rsend(ends[0], "more", 4, 0) == -1 && errno == EPIPE);
	CHECK(rrecv(ends[1], buffer, 4, MSG_PEEK) == 4 && !memcmp(buffer, "ques", 4));
	CHECK(rrecv(ends[1], buffer, sizeof buffer, MSG_WAITALL) == 8 && !memcmp(buffer, "question", 8));
	CHECK(rrecv(ends[1], buffer, sizeof buffer, 0) == 0);
	CHECK(ready(ends[1], POLLIN | POLLRDHUP) == (POLLIN | POLLRDHUP));
	CHECK(rsend(ends[1], "answer", 6, 0) == 6);
	CHECK(rclose(ends[1]) == 0);
	CHECK(rrecv(ends[0], buffer, sizeof buffer, MSG_WAITALL) == 6 && !memcmp(buffer, "answer", 6));
	CHECK(rrecv(ends[0], buffer, sizeof buffer, 0) == 0);
	CHECK(ready(ends[0], POLLIN) & POLLHUP);
	CHECK(rclose(ends[0]) == 0);

	/* Data sent before the close arrives; sending to a closed peer fails. */
	pair(ends);
	CHECK(rwrite(ends[0], "last", 4) == 4);
	CHECK(rclose(ends[0]) == 0);
	CHECK(rread(ends[1], buffer, sizeof buffer) == 4);
	CHECK(rread(ends[1], buffer, sizeof buffer) == 0);
	CHECK(rwrite(ends[1], "x", 1) == -1 && errno == ECONNRESET);
	CHECK(rclose(ends[1]) == 0);
}

static void without_waiting(void)
{
	static char bytes[CHUNK];
	int listener = listening(4), fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error = -1;
	socklen_t len = sizeof error;
	size_t sent = 0, got = 0;
	ssize_t count;

	CHECK(rfcntl(listener, F_SETFL, O_NONBLOCK) == 0);
	CHECK(raccept(listener, NULL, NULL) == -1 && errno == EAGAIN);
	CHECK(rconnect(fd, (struct sockaddr *) &address, sizeof address) == -1 && errno == EINPROGRESS);
	CHECK(ready(fd, POLLOUT) == POLLOUT);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0 && len == sizeof error);
	CHECK(ready(listener, POLLIN) == POLLIN);
	int other = raccept(listener, NULL, NULL);
	CHECK(other >= 0 && (rfcntl(other, F_GETFL, 0) & O_NONBLOCK));
	CHECK(rrecv(other, bytes, 1, 0) == -1 && errno == EAGAIN);
	while ((count = rsend(fd, bytes, sizeof bytes, 0)) > 0)
		sent += count;
	CHECK(errno == EAGAIN && sent >= 65536);
	while (got < sent) {
		CHECK(ready(other, POLLIN) == POLLIN);
		while ((count = rrecv(other, bytes, sizeof bytes, 0)) > 0)
			got += count;
		CHECK(errno == EAGAIN);
	}
	CHECK(got == sent);
	CHECK(ready(fd, POLLOUT) == POLLOUT);
	CHECK(rclose(fd) == 0 && rclose(other) == 0 && rclose(listener) == 0);

	/* SO_ERROR reports the failure. */
	int bound = bound_only();
	fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (rconnect(fd, (struct sockaddr *) &address, sizeof address) == -1 && errno == EINPROGRESS) {
		CHECK(ready(fd, POLLOUT) & POLLERR);
		CHECK(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == ECONNREFUSED);
	} else {
		CHECK(errno == ECONNREFUSED);
	}
	CHECK(rclose(fd) == 0 && rclose(bound) == 0);
}

/* Fills a buffer with values that depend on the position in the stream. */
static void fill(unsigned char *bytes, size_t len, size_t at)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = (unsigned char) ((at + i) * 2654435761u >> 13);
}

static void *send_all(void *argument)
{
	static unsigned char bytes[CHUNK];
	int fd = *(int *) argument;

	for (size_t at = 0, round = 0; round < ROUNDS; round++) {
		size_t len = 1 + (round * 7919) % CHUNK, half = len / 2;
		struct iovec parts[3] = { { bytes, half }, { bytes, 0 }, { bytes + half, len - half } };

		fill(bytes, len, at);
		CHECK(rwritev(fd, parts, 3) == (ssize_t) len);
		at += len;
	}
	CHECK(rshutdown(fd, SHUT_WR) == 0);
	return NULL;
}

static void receive_all(int fd)
{
	static unsigned char bytes[CHUNK], expected[CHUNK];
	size_t at = 0, total = 0;
	ssize_t count;

	for (size_t round = 0; round < ROUNDS; round++)
		total += 1 + (round * 7919) % CHUNK;
	for (size_t round = 0;; round++) {
		size_t len = 1 + (round * 104729) % CHUNK, half = len / 3;
		struct iovec parts[2] = { { bytes, half }, { bytes + half, len - half } };

		count = rreadv(fd, parts, 2);
		CHECK(count >= 0);
		if (count == 0)
			break;
		fill(expected, count, at);
		CHECK(!memcmp(bytes, expected, count));
		at += count;
	}
	CHECK(at == total);
}

static void bytes_are_those_that_were_sent(void)
{
	int ends[2];
	pthread_t sender;

	pair(ends);
	CHECK(pthread_create(&sender, NULL, send_all, &ends[0]) == 0);
	receive_all(ends[1]);
	CHECK(pthread_join(sender, NULL) == 0);
	close_pair(ends);
}

static void options(void)
{
	int ends[2], value = 0, fd = rsocket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof value;
	struct linger linger;

	value = 8192;
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, len) == 0);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &len) == 0 && value == 16384);
	value = 100;
	CHECK(rsetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, len) == 0);
	CHECK(rgetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, &len) == 0 && value == 100);
	value = 1;
	CHECK(rsetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, len) == 0);
	value = 0;
	CHECK(rgetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0 && value == 1);
	CHECK(rsetsockopt(fd, SOL_SOCKET, 12345, &value, len) == -1 && errno == ENOPROTOOPT);
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &value, 2) == -1 && errno == EINVAL);
	len = sizeof linger;
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len) == 0 && linger.l_onoff == 0);
	CHECK(rclose(fd) == 0);
	pair(ends);
	len = sizeof value;
	CHECK(rsetsockopt(ends[0], SOL_RDMA, RDMA_SQSIZE, &value, len) == -1 && errno == EINVAL);
	close_pair(ends);
}

static void direct_writes(void)
{
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), fd = rsocket(AF_INET, SOCK_STREAM, 0), maps = 4;
	socklen_t len = sizeof address;
	static char target[8192], source[8192];
	char byte;

	address.sin_port = 0;
	CHECK(rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof maps) == 0);
	CHECK(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof maps) == 0);
	CHECK(rbind(listener, (struct sockaddr *) &address, sizeof address) == 0 && rlisten(listener, 1) == 0);
	CHECK(rgetsockname(listener, (struct sockaddr *) &address, &len) == 0);
	CHECK(rconnect(fd, (struct sockaddr *) &address, sizeof address) == 0);
	int other = raccept(listener, NULL, NULL);
	CHECK(other >= 0);

	memset(source, 'x', sizeof source);
	CHECK(riomap(other, target, sizeof target, PROT_WRITE, 0, 1 << 20) == 1 << 20);
	CHECK(riomap(other, target, sizeof target, PROT_READ, 0, 0) == -1 && errno == EINVAL);
	/* A mapping is published together with the next bytes. */
	CHECK(rsend(other, "m", 1, 0) == 1 && rrecv(fd, &byte, 1, 0) == 1);
	CHECK(riowrite(fd, source, sizeof source, 12, 0) == 0);
	CHECK(riowrite(fd, source, 4000, (1 << 20) + 96, 0) == 4000);
	CHECK(riowrite(fd, source, sizeof source, (1 << 20) + 8000, 0) == 192);
	CHECK(rsend(fd, "d", 1, 0) == 1 && rrecv(other, &byte, 1, 0) == 1);
	for (size_t i = 0; i < sizeof target; i++)
		CHECK(target[i] == ((i >= 96 && i < 4096) || i >= 8000 ? 'x' : 0));
	CHECK(riounmap(other, target, 5) == -1 && errno == EINVAL);
	CHECK(riounmap(other, target, sizeof target) == 0);
	CHECK(rclose(fd) == 0 && rclose(other) == 0 && rclose(listener) == 0);
}

static void rsockets_and_descriptors_in_one_wait(void)
{
	struct timeval second = { .tv_sec = 10 };
	struct pollfd both[2];
	int ends[2], pipes[2];
	fd_set read_set;

	pair(ends);
	CHECK(pipe(pipes) == 0);
	both[0] = (struct pollfd) { .fd = ends[1], .events = POLLIN };
	both[1] = (struct pollfd) { .fd = pipes[0], .events = POLLIN };
	CHECK(rpoll(both, 2, 0) == 0 && rpoll(both, 2, 20) == 0);
	CHECK(write(pipes[1], "p", 1) == 1);
	CHECK(rpoll(both, 2, -1) == 1 && both[0].revents == 0 && both[1].revents == POLLIN);
	CHECK(rsend(ends[0], "r", 1, 0) == 1);
	while (rpoll(both, 2, -1) != 2)
		;
	CHECK(both[0].revents == POLLIN && both[1].revents == POLLIN);
	FD_ZERO(&read_set);
	FD_SET(ends[1], &read_set);
	FD_SET(pipes[0], &read_set);
	CHECK(rselect(ends[1] + pipes[0] + 1, &read_set, NULL, NULL, &second) == 2);
	CHECK(FD_ISSET(ends[1], &read_set) && FD_ISSET(pipes[0], &read_set));

	/* The header of this system does not declare these functions yet. */
	int (*create)(int) = dlsym(RTLD_DEFAULT, "repoll_create");
	int (*control)(int, int, int, struct epoll_event *) = dlsym(RTLD_DEFAULT, "repoll_ctl");
	int (*wait_for)(int, struct epoll_event *, int, int) = dlsym(RTLD_DEFAULT, "repoll_wait");
	struct epoll_event events[4], event = { .events = EPOLLIN, .data.u32 = 1 };
	char byte;
	CHECK(create && control && wait_for);
	int set = create(EPOLL_CLOEXEC);
	CHECK(set >= 0);
	CHECK(control(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
	CHECK(control(set, EPOLL_CTL_ADD, ends[1], &event) == -1 && errno == EEXIST);
	event.data.u32 = 2;
	CHECK(control(set, EPOLL_CTL_ADD, pipes[0], &event) == 0);
	CHECK(wait_for(set, events, 4, -1) == 2 && events[0].data.u32 + events[1].data.u32 == 3);
	CHECK(rrecv(ends[1], &byte, 1, 0) == 1 && read(pipes[0], &byte, 1) == 1);
	CHECK(wait_for(set, events, 4, 0) == 0 && wait_for(set, events, 4, 20) == 0);
	CHECK(rsend(ends[0], "r", 1, 0) == 1);
	/* A level-triggered event is reported until the data is read. */
	for (int i = 0; i < 3; i++)
		CHECK(wait_for(set, events, 4, -1) == 1 && events[0].data.u32 == 1 && events[0].events == EPOLLIN);
	event.events = EPOLLIN | EPOLLONESHOT;
	CHECK(control(set, EPOLL_CTL_MOD, ends[1], &event) == 0);
	CHECK(wait_for(set, events, 4, -1) == 1 && wait_for(set, events, 4, 0) == 0);
	CHECK(control(set, EPOLL_CTL_DEL, ends[1], NULL) == 0);
	CHECK(control(set, EPOLL_CTL_DEL, ends[1], NULL) == -1 && errno == ENOENT);

	/* An edge-triggered event is reported once for each arrival. A closed descriptor is removed
	 * from all sets. */
	event.events = EPOLLIN | EPOLLET;
	event.data.u32 = 7;
	CHECK(rrecv(ends[1], &byte, 1, 0) == 1);
	CHECK(control(set, EPOLL_CTL_ADD, ends[1], &event) == 0 && wait_for(set, events, 4, 0) == 0);
	CHECK(rsend(ends[0], "e", 1, 0) == 1);
	CHECK(wait_for(set, events, 4, -1) == 1 && events[0].data.u32 == 7);
	CHECK(wait_for(set, events, 4, 20) == 0);
	CHECK(rsend(ends[0], "e", 1, 0) == 1);
	CHECK(wait_for(set, events, 4, -1) == 1);
	close_pair(ends);
	CHECK(wait_for(set, events, 4, 20) == 0);
	CHECK(rclose(set) == 0);
	close(pipes[0]);
	close(pipes[1]);
}

/* The peer is a child that is killed while bytes are in flight in both directions. */
static void a_peer_is_killed(void)
{
	static char bytes[CHUNK];
	int pipes[2], status;
	pid_t child;

	CHECK(pipe(pipes) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		int listener = listening(1);
		CHECK(write(pipes[1], &address, sizeof address) == sizeof address);
		int fd = raccept(listener, NULL, NULL);
		CHECK(fd >= 0 && rrecv(fd, bytes, 1, 0) == 1);
		CHECK(rsend(fd, bytes, 1000, 0) == 1000);
		for (;;)
			pause();
	}
	CHECK(read(pipes[0], &address, sizeof address) == sizeof address);
	int fd = connected();
	CHECK(rsend(fd, bytes, CHUNK, 0) == CHUNK);
	CHECK(rrecv(fd, bytes, 1000, MSG_WAITALL) == 1000);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	ssize_t count = rrecv(fd, bytes, sizeof bytes, 0);
	CHECK(count == 0 || (count == -1 && errno == ECONNRESET));
	do
		count = rsend(fd, bytes, sizeof bytes, 0);
	while (count > 0);
	CHECK(errno == ECONNRESET);
	CHECK(rclose(fd) == 0);
	close(pipes[0]);
	close(pipes[1]);
}

/* An rsocket of the parent is inert in a child, which can create its own; a process that exits
 * closes its connections. */
static void forks(void)
{
	int ends[2], status;
	char byte;

	pair(ends);
	int listener = listening(1);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(rsend(ends[0], "x", 1, 0) == -1 && errno == EIO);
		CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0);
		int fd = connected();
		CHECK(rsend(fd, "c", 1, 0) == 1);
		exit(EXIT_SUCCESS);
	}
	int fd = raccept(listener, NULL, NULL);
	CHECK(fd >= 0 && rrecv(fd, &byte, 1, 0) == 1 && byte == 'c');
	CHECK(rrecv(fd, &byte, 1, 0) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(rsend(ends[0], "p", 1, 0) == 1 && rrecv(ends[1], &byte, 1, 0) == 1);
	CHECK(rclose(fd) == 0 && rclose(listener) == 0);
	close_pair(ends);
}

static int open_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	CHECK(folder != NULL);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static void many_at_once(void)
{
	static int clients[MANY], servers[MANY];
	static struct pollfd all[MANY];
	int before = open_descriptors(), listener = listening(MANY), left = MANY;
	char byte;

	for (int i = 0; i < MANY; i++) {
		clients[i] = connected();
		CHECK(rsend(clients[i], "a", 1, 0) == 1);
	}
	for (int i = 0; i < MANY; i++) {
		servers[i] = raccept(listener, NULL, NULL);
		CHECK(servers[i] >= 0);
		all[i] = (struct pollfd) { .fd = servers[i], .events = POLLIN };
	}
	CHECK(rclose(listener) == 0);
	for (int i = 0; i < MANY; i += 3)
		CHECK(rshutdown(clients[i], SHUT_WR) == 0);
	while (left > 0) {
		CHECK(rpoll(all, MANY, 10000) > 0);
		for (int i = 0; i < MANY; i++) {
			if (all[i].fd >= 0 && all[i].revents) {
				CHECK(rrecv(servers[i], &byte, 1, 0) == 1 && byte == 'a');
				CHECK(rsend(servers[i], "b", 1, 0) == 1);
				all[i].fd = -1;
				left--;
			}
		}
	}
	for (int i = 0; i < MANY; i++) {
		CHECK(rrecv(clients[i], &byte, 1, 0) == 1 && byte == 'b');
		CHECK(rclose(clients[i]) == 0);
	}
	for (int i = 0; i < MANY; i++) {
		CHECK(rrecv(servers[i], &byte, 1, 0) == 0);
		CHECK(rclose(servers[i]) == 0);
	}
	/* The last bytes of a closed connection may be in flight for a moment. */
	for (int tries = 0; open_descriptors() > before + 2; tries++) {
		CHECK(tries < 1000);
		usleep(10000);
	}
}

int main(int argc, char **argv)
{
	(void) argv;
	/* This call creates the engine and the descriptors of its threads before any descriptors are
	 * counted. */
	addresses_and_bad_descriptors();
	half_close_and_end();
	without_waiting();
	bytes_are_those_that_were_sent();
	options();
	direct_writes();
	rsockets_and_descriptors_in_one_wait();
	if (argc == 1) {
		forks();
		a_peer_is_killed();
	}
	many_at_once();
	puts("sockets are as they should be");
	return EXIT_SUCCESS;
}
