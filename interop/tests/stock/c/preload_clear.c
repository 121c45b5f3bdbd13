/* Tests which data a program under librspreload.so must not send or receive unencrypted. The
 * program knows only TCP. "Raw" calls bypass the library and act as a peer without it. */
#define _GNU_SOURCE
#include "tcp.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static void descriptors_are(int lowest)
{
	int fd = open("/dev/null", O_RDONLY);
	CHECK(fd == lowest && close(fd) == 0);
}

/* With invalid settings TCP sockets cannot be created, but all other kinds can. */
static void no_socket(void)
{
	int lowest = open("/dev/null", O_RDONLY), fd;
	CHECK(close(lowest) == 0);
	FAILS(socket(AF_INET, SOCK_STREAM, 0), EINVAL);
	FAILS(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_TCP), EINVAL);
	descriptors_are(lowest);
	CHECK((fd = socket(AF_INET, SOCK_DGRAM, 0)) == lowest && close(fd) == 0);
	CHECK((fd = socket(AF_UNIX, SOCK_STREAM, 0)) == lowest && close(fd) == 0);
}

/* A message sent by the call that connects would establish the connection by TCP. */
static void fast_open(void)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), fd = socket(AF_INET, SOCK_STREAM, 0), accepted;
	struct iovec part = {"secret", 6};
	struct msghdr message = {.msg_name = &at, .msg_namelen = len, .msg_iov = &part, .msg_iovlen = 1};
	struct mmsghdr messages = {.msg_hdr = message};
	FAILS(sendto(fd, "secret", 6, MSG_FASTOPEN, &at.any, len), EOPNOTSUPP);
	FAILS(sendmsg(fd, &message, MSG_FASTOPEN), EOPNOTSUPP);
	FAILS(sendmmsg(fd, &messages, 1, MSG_FASTOPEN), EOPNOTSUPP);
	CHECK(connect(fd, &at.any, len) == 0 && (accepted = accept(listener, NULL, NULL)) >= 0);
	crosses(fd, accepted);
	CHECK(close(fd) == 0 && close(accepted) == 0 && close(listener) == 0);
}

/* Connects a peer that does not use rsockets, by raw calls. */
static int raw_peer(int listener)
{
	union address real;
	socklen_t len = sizeof real;
	int fd = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && syscall(SYS_getsockname, listener, &real, &len) == 0);
	CHECK(syscall(SYS_connect, fd, &real, len) == 0);
	CHECK(syscall(SYS_write, fd, "GET secret", 10) == 10);
	return fd;
}

/* Checks that the peer receives no data. */
static void gets_nothing(int peer)
{
	char byte;
	long got = syscall(SYS_read, peer, &byte, 1);
	CHECK((got == 0 || (got == -1 && errno == ECONNRESET)) && syscall(SYS_close, peer) == 0);
}

/* From here on, no descriptor can be created. */
static void limit(rlim_t *before)
{
	int lowest = dup(0);
	struct rlimit limits;
	CHECK(close(lowest) == 0 && getrlimit(RLIMIT_NOFILE, &limits) == 0);
	*before = limits.rlim_cur;
	limits.rlim_cur = lowest;
	CHECK(setrlimit(RLIMIT_NOFILE, &limits) == 0);
}

static void unlimit(rlim_t before)
{
	struct rlimit limits;
	CHECK(getrlimit(RLIMIT_NOFILE, &limits) == 0);
	limits.rlim_cur = before;
	CHECK(setrlimit(RLIMIT_NOFILE, &limits) == 0);
}

/* Calls a program makes on a connection that cannot become an rsocket: nothing is received and
 * nothing is sent. */
static void is_refused(int fd)
{
	char got[16];
	struct pollfd one = {.fd = fd, .events = POLLIN};
	CHECK(poll(&one, 1, -1) == 1 && one.revents & POLLERR);
	CHECK(read(fd, got, sizeof got) == -1);
	CHECK(send(fd, "secret", 6, MSG_NOSIGNAL) == -1 && recv(fd, got, sizeof got, 0) == -1);
	/* Raw calls must not receive anything either. */
	CHECK(syscall(SYS_read, fd, got, sizeof got) <= 0);
	CHECK(close(fd) == 0);
	FAILS(close(fd), EBADF);
}

/* On the first use of an accepted connection no descriptor is available. */
static void no_descriptor(void)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len);
	for (int round = 0; round < 3; round++) {
		rlim_t before;
		int peer = raw_peer(listener), accepted = accept(listener, NULL, NULL);
		CHECK(accepted >= 0);
		limit(&before);
		is_refused(accepted);
		unlimit(before);
		gets_nothing(peer);
		/* The accepted connection is closed without being used. */
		peer = raw_peer(listener);
		accepted = accept(listener, NULL, NULL);
		limit(&before);
		CHECK(close(accepted) == 0);
		unlimit(before);
		gets_nothing(peer);
		/* The connecting end runs out of descriptors. */
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		limit(&before);
		CHECK(connect(fd, &at.any, len) == -1);
		CHECK(send(fd, "secret", 6, MSG_NOSIGNAL) == -1);
		unlimit(before);
		CHECK(close(fd) == 0);
		accepted = accept(listener, NULL, NULL);
		CHECK(syscall(SYS_recvfrom, accepted, &(char[16]){0}, 16, 0, NULL, NULL) <= 0 && close(accepted) == 0);
		/* The engine exists from here on. */
		fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(connect(fd, &at.any, len) == 0 && (accepted = accept(listener, NULL, NULL)) >= 0);
		crosses(fd, accepted);
		CHECK(close(fd) == 0 && close(accepted) == 0);
	}
	CHECK(close(listener) == 0);
}

/* The TLS identity cannot be loaded. */
static void no_identity(void)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), peer = raw_peer(listener), accepted = accept(listener, NULL, NULL), fd;
	CHECK(accepted >= 0);
	is_refused(accepted);
	gets_nothing(peer);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(fd, &at.any, len) == -1 && send(fd, "secret", 6, MSG_NOSIGNAL) == -1 && close(fd) == 0);
	CHECK(close(listener) == 0);
}

/* The socket first tries the listed port, on which nothing listens, and then another port, which
 * is not in the list. */
static void another_port(int listed)
{
	union address at;
	socklen_t len = loopback(&at, htons(listed));
	int fd = socket(AF_INET, SOCK_STREAM, 0), plain;
	FAILS(connect(fd, &at.any, len), ECONNREFUSED);
	/* The port must be low enough for the test's offset of 10,000. */
	do {
		plain = syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		CHECK(syscall(SYS_listen, plain, 5) == 0 && syscall(SYS_getsockname, plain, &at, &len) == 0);
	} while (ntohs(at.v4.sin_port) > 55535);
	FAILS(connect(fd, &at.any, len), ECONNREFUSED);
	len = loopback(&at, 0);
	FAILS(connect(fd, &at.any, len), ECONNREFUSED);
	FAILS(syscall(SYS_accept4, plain, NULL, NULL, 0), EAGAIN);
	CHECK(close(fd) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	if (strcmp(argv[1], "no-socket") == 0)
		no_socket();
	else if (strcmp(argv[1], "fast-open") == 0)
		fast_open();
	else if (strcmp(argv[1], "no-descriptor") == 0)
		no_descriptor();
	else if (strcmp(argv[1], "no-identity") == 0)
		no_identity();
	else if (strcmp(argv[1], "another-port") == 0 && getenv("UIW_SOCKETS_TCP"))
		another_port(atoi(getenv("UIW_SOCKETS_TCP")));
	else
		return 2;
	puts("nothing is in the clear");
	return 0;
}
