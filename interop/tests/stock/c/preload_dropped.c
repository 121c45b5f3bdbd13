/* A server without rsockets is behind a firewall that drops packets to the port of rsockets,
 * which is 10,000 above that of TCP. A listener with a full queue, which also drops SYNs,
 * replaces the firewall. "Raw" calls bypass the library and act as other hosts. On TCP alone the
 * program connects at once. */
#define _GNU_SOURCE
#include "tcp.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>

enum { OFFSET = 10000 };

static int raw_listening(int port, int backlog)
{
	union address at;
	socklen_t len = loopback(&at, htons(port));
	int fd = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	if (syscall(SYS_bind, fd, &at, len) != 0) {
		CHECK(errno == EADDRINUSE && syscall(SYS_close, fd) == 0);
		return -1;
	}
	CHECK(syscall(SYS_listen, fd, backlog) == 0);
	return fd;
}

static int raw_connecting(int port, int flags)
{
	union address at;
	socklen_t len = loopback(&at, htons(port));
	int fd = syscall(SYS_socket, AF_INET, SOCK_STREAM | flags, 0);
	CHECK(fd >= 0 && (syscall(SYS_connect, fd, &at, len) == 0 || errno == EINPROGRESS));
	return fd;
}

static void is_served(int listener, int fd)
{
	char got[4];
	int accepted = syscall(SYS_accept4, listener, NULL, NULL, 0);
	CHECK(accepted >= 0 && send(fd, "four", 4, 0) == 4);
	CHECK(syscall(SYS_recvfrom, accepted, got, 4, MSG_WAITALL, NULL, NULL) == 4 && memcmp(got, "four", 4) == 0);
	CHECK(syscall(SYS_close, accepted) == 0 && close(fd) == 0);
}

int main(void)
{
	union address at;
	socklen_t len, size = sizeof(int);
	int listener = -1, full = -1, error;
	/* A single call must not take as long as the system retransmits a SYN. */
	alarm(60);
	for (int port = 20000 + getpid() % 10000; full < 0; port++) {
		if (listener >= 0)
			CHECK(syscall(SYS_close, listener) == 0);
		listener = raw_listening(port, 5);
		if (listener < 0)
			continue;
		len = loopback(&at, htons(port));
		full = raw_listening(port + OFFSET, 0);
	}
	raw_connecting(ntohs(at.v4.sin_port) + OFFSET, 0);
	raw_connecting(ntohs(at.v4.sin_port) + OFFSET, SOCK_NONBLOCK);

	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(fd, &at.any, len) == 0);
	is_served(listener, fd);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(connect(fd, &at.any, len) == 0 || errno == EINPROGRESS);
	struct pollfd one = {.fd = fd, .events = POLLOUT};
	CHECK(poll(&one, 1, -1) == 1);
	CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0);
	is_served(listener, fd);
	puts("the server is reached");
	return 0;
}
