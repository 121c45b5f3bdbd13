/* Datagram rsockets compared with UDP: every case runs on both with the same result. Arguments:
 * "udp" uses plain sockets only (which librspreload.so may turn into rsockets), "alone" no
 * children, "few" fewer echoes, "ipv6" IPv6; "say" runs a socket that prints each message and
 * sends it back, "answer ADDRESS PORT" one that only sends it back, and "ask ADDRESS PORT COUNT"
 * one that compares the echoes. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include "check.h"

#define LONGEST_V4 2032
#define LONGEST_V6 2020
#define ECHOES 3000

static bool rs = true;
static int family = AF_INET;

typedef union {
	struct sockaddr sa;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
} address;

#define CALL(name, ...) (rs ? r##name(__VA_ARGS__) : name(__VA_ARGS__))

static int control(int fd, int command, long argument)
{
	return rs ? rfcntl(fd, command, argument) : fcntl(fd, command, argument);
}

static size_t longest(void)
{
	return family == AF_INET ? LONGEST_V4 : LONGEST_V6;
}

static address loopback(uint16_t port)
{
	address to = { 0 };

	to.sa.sa_family = family;
	if (family == AF_INET) {
		to.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		to.v4.sin_port = port;
	} else {
		to.v6.sin6_addr = in6addr_loopback;
		to.v6.sin6_port = port;
	}
	return to;
}

static socklen_t length(void)
{
	return family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static uint16_t port_of(const address *of)
{
	return family == AF_INET ? of->v4.sin_port : of->v6.sin6_port;
}

static int bound(address *own)
{
	int fd = CALL(socket, family, SOCK_DGRAM, 0);
	socklen_t len = sizeof *own;

	CHECK(fd >= 0);
	*own = loopback(0);
	CHECK(CALL(bind, fd, &own->sa, length()) == 0);
	CHECK(CALL(getsockname, fd, &own->sa, &len) == 0);
	CHECK(len == length() && port_of(own) != 0);
	return fd;
}

static int ready(int fd, int events, int timeout)
{
	struct pollfd entry = { .fd = fd, .events = events };

	CHECK(CALL(poll, &entry, 1, timeout) == (entry.revents != 0));
	return entry.revents;
}

static void fill(unsigned char *bytes, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = (unsigned char) ((seed * 31 + i) * 2654435761u >> 11);
}

/* Sends until a datagram arrives, because it may be lost while the two sockets learn about each
 * other, and twice so that both directions are used. */
static void exchange(int from, int to, const address *at)
{
	char buffer[8];

	for (int round = 0; round < 3; round++) {
		do {
			CHECK(CALL(sendto, from, "known", 5, 0, &at->sa, length()) == 5);
		} while (!(ready(to, POLLIN, 1000) & POLLIN));
		while (ready(to, POLLIN, 20) & POLLIN)
			CHECK(CALL(recv, to, buffer, sizeof buffer, 0) == 5);
	}
}

static void sizes_and_sources(void)
{
	static unsigned char sent[LONGEST_V4], got[LONGEST_V4 + 1];
	address one, other, from;
	int a = bound(&one), b = bound(&other);
	size_t sizes[] = { 0, 1, 17, 512, 1016, 1017, 1500, LONGEST_V6, longest() };

	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
			socklen_t len = sizeof from;

			fill(sent, sizes[i], i);
			CHECK(CALL(sendto, a, sent, sizes[i], 0, &other.sa, length()) == (ssize_t) sizes[i]);
			memset(&from, 0, sizeof from);
			CHECK(CALL(recvfrom, b, got, sizeof got, 0, &from.sa, &len) == (ssize_t) sizes[i]);
			CHECK(memcmp(sent, got, sizes[i]) == 0);
			CHECK(len == length() && memcmp(&from, &one, len) == 0);
		}
		exchange(a, b, &other);
	}
	/* Buffer larger than any datagram. */
	static char much[70000];
	CHECK(CALL(sendto, a, much, sizeof much, 0, &other.sa, length()) == -1 && errno == EMSGSIZE);
	if (rs)
		CHECK(rsendto(a, much, longest() + 1, 0, &other.sa, length()) == -1 && errno == EMSGSIZE);
	CHECK(CALL(close, a) == 0 && CALL(close, b) == 0);
}

static void lists_and_cut_messages(void)
{
	address one, other, from;
	int a = bound(&one), b = bound(&other);
	char x[4] = "", y[4] = "";

	for (int round = 0; round < 2; round++) {
		struct iovec out[3] = { { "ab", 2 }, { "", 0 }, { "cdefgh", 6 } }, in[2] = { { x, 3 }, { y, 4 } };
		struct msghdr send = { .msg_name = &other, .msg_namelen = length(), .msg_iov = out, .msg_iovlen = 3 };
		struct msghdr receive = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = in, .msg_iovlen = 2 };

		CHECK(CALL(sendmsg, a, &send, 0) == 8);
		CHECK(CALL(recv, b, x, 4, MSG_PEEK) == 4 && !memcmp(x, "abcd", 4));
		CHECK(CALL(recvmsg, b, &receive, MSG_PEEK | MSG_TRUNC) == 8);
		CHECK(CALL(recvmsg, b, &receive, 0) == 7);
		CHECK(!memcmp(x, "abc", 3) && !memcmp(y, "defg", 4));
		CHECK(receive.msg_flags == MSG_TRUNC && receive.msg_namelen == length() && !memcmp(&from, &one, length()));
		/* The rest of the datagram was discarded. */
		CHECK(CALL(recv, b, x, 4, MSG_DONTWAIT) == -1 && errno == EAGAIN);
		CHECK(CALL(sendto, a, "longer", 6, 0, &other.sa, length()) == 6);
		CHECK(CALL(recv, b, x, 2, MSG_TRUNC) == 6 && !memcmp(x, "lo", 2));
		exchange(a, b, &other);
	}
	CHECK(CALL(close, a) == 0 && CALL(close, b) == 0);
}

static void one_peer(void)
{
	address at_a, at_b, at_c, none = { .sa = { .sa_family = AF_UNSPEC } };
	int a = bound(&at_a), b = bound(&at_b), c = bound(&at_c);
	struct iovec parts[2] = { { "wri", 3 }, { "tten", 4 } };
	char buffer[16];
	socklen_t len = sizeof none;

	/* The third socket has exchanged queue pairs with `a`. */
	exchange(c, a, &at_a);
	CHECK(CALL(send, a, "x", 1, 0) == -1 && errno == EDESTADDRREQ);
	CHECK(CALL(getpeername, a, &none.sa, &len) == -1 && errno == ENOTCONN);
	CHECK(CALL(shutdown, a, SHUT_RDWR) == -1 && errno == ENOTCONN);
	none.sa.sa_family = AF_UNSPEC;
	CHECK(CALL(connect, b, &at_a.sa, length()) == 0);
	for (int i = 0; i < 3; i++) {
		CHECK(CALL(write, b, "plain", 5) == 5 && CALL(read, a, buffer, sizeof buffer) == 5);
		CHECK(CALL(writev, b, parts, 2) == 7 && CALL(recv, a, buffer, sizeof buffer, 0) == 7);
		CHECK(memcmp(buffer, "written", 7) == 0);
	}
	len = sizeof none;
	CHECK(CALL(getpeername, b, &none.sa, &len) == 0 && len == length() && !memcmp(&none, &at_a, len));
	CHECK(CALL(close, a) == 0);
	a = CALL(socket, family, SOCK_DGRAM, IPPROTO_UDP);
	CHECK(a >= 0 && CALL(bind, a, &at_a.sa, length()) == 0);
	CHECK(CALL(connect, a, &at_b.sa, length()) == 0);
	/* Messages of other sockets do not arrive; those of a restarted peer do. */
	CHECK(CALL(sendto, c, "other", 5, 0, &at_a.sa, length()) == 5);
	do {
		CHECK(CALL(send, b, "peer's", 6, 0) == 6 || errno == ECONNREFUSED);
	} while (!(ready(a, POLLIN, 50) & POLLIN));
	while (CALL(recv, a, buffer, sizeof buffer, MSG_DONTWAIT) >= 0)
		CHECK(memcmp(buffer, "peer's", 6) == 0);
	CHECK(errno == EAGAIN);
	exchange(a, b, &at_b);
	/* The socket is disconnected from its peer again. */
	memset(&none, 0, sizeof none);
	CHECK(CALL(connect, a, &none.sa, sizeof none.sa) == 0);
	len = sizeof none;
	CHECK(CALL(getpeername, a, &none.sa, &len) == -1 && errno == ENOTCONN);
	CHECK(CALL(close, a) == 0 && CALL(close, b) == 0 && CALL(close, c) == 0);
}

static void half_closed(void)
{
	address at_a, at_b;
	int a = bound(&at_a), b = bound(&at_b);
	char byte;

	CHECK(CALL(connect, a, &at_b.sa, length()) == 0);
	CHECK(CALL(shutdown, a, SHUT_WR) == 0);
	CHECK(CALL(send, a, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
	CHECK(CALL(shutdown, a, SHUT_RD) == 0);
	CHECK(CALL(recv, a, &byte, 1, 0) == 0);
	CHECK(ready(a, POLLIN, 0) & POLLIN);
	CHECK(CALL(close, a) == 0 && CALL(close, b) == 0);
}

static void without_waiting(void)
{
	address at_a, at_b;
	int a = bound(&at_a), b = bound(&at_b);
	struct timeval soon = { 0, 20000 };
	char byte;
	fd_set set;

	CHECK(CALL(recv, a, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(CALL(setsockopt, a, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
	CHECK(CALL(recv, a, &byte, 1, 0) == -1 && errno == EAGAIN);
	CHECK(control(a, F_SETFL, O_NONBLOCK) == 0 && (control(a, F_GETFL, 0) & O_NONBLOCK));
	CHECK(CALL(recv, a, &byte, 1, 0) == -1 && errno == EAGAIN);
	CHECK(ready(a, POLLIN, 10) == 0 && ready(a, POLLIN | POLLOUT, 0) == POLLOUT);
	exchange(b, a, &at_a);
	CHECK(CALL(sendto, b, "x", 1, MSG_DONTWAIT, &at_a.sa, length()) == 1);
	CHECK(ready(a, POLLIN, -1) == POLLIN);
	FD_ZERO(&set);
	FD_SET(a, &set);
	soon.tv_sec = 5;
	CHECK(CALL(select, a + 1, &set, NULL, NULL, &soon) == 1 && FD_ISSET(a, &set));
	CHECK(CALL(recv, a, &byte, 1, 0) == 1 && byte == 'x');
	CHECK(ready(a, POLLIN, 0) == 0);
	CHECK(CALL(close, a) == 0 && CALL(close, b) == 0);
	a = CALL(socket, family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	at_a = loopback(0);
	CHECK(a >= 0 && CALL(bind, a, &at_a.sa, length()) == 0);
	CHECK(CALL(recv, a, &byte, 1, 0) == -1 && errno == EAGAIN);
	CHECK(CALL(close, a) == 0);
}

static int option(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof value;

	CHECK(CALL(getsockopt, fd, level, name, &value, &len) == 0 && len == sizeof value);
	return value;
}

static void options(void)
{
	address own;
	int fd = CALL(socket, family, SOCK_DGRAM, 0), on = 1, size = 1 << 16;

	CHECK(CALL(setsockopt, fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	CHECK(CALL(setsockopt, fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof on) == 0);
	CHECK(CALL(setsockopt, fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) == 0);
	CHECK(CALL(setsockopt, fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
	CHECK(option(fd, SOL_SOCKET, SO_REUSEADDR) == 1 && option(fd, SOL_SOCKET, SO_BROADCAST) == 1);
	CHECK(option(fd, SOL_SOCKET, SO_RCVBUF) == 2 * size && option(fd, SOL_SOCKET, SO_SNDBUF) == 2 * size);
	CHECK(option(fd, SOL_SOCKET, SO_TYPE) == SOCK_DGRAM && option(fd, SOL_SOCKET, SO_ERROR) == 0);
	CHECK(CALL(setsockopt, fd, SOL_SOCKET, 12345, &on, sizeof on) == -1 && errno == ENOPROTOOPT);
	CHECK(CALL(setsockopt, fd, SOL_SOCKET, SO_REUSEADDR, &on, 1) == -1 && errno == EINVAL);
	if (rs) {
		CHECK(rsetsockopt(fd, SOL_RDMA, RDMA_RQSIZE, &(int) { 20 }, sizeof(int)) == 0);
		CHECK(option(fd, SOL_RDMA, RDMA_RQSIZE) == 20 && option(fd, SOL_RDMA, RDMA_SQSIZE) == 384);
	}
	own = loopback(0);
	CHECK(CALL(bind, fd, &own.sa, length()) == 0);
	CHECK(CALL(bind, fd, &own.sa, length()) == -1 && errno == EINVAL);
	if (rs)
		CHECK(rsetsockopt(fd, SOL_RDMA, RDMA_RQSIZE, &size, sizeof size) == -1 && errno == EINVAL);
	CHECK(CALL(listen, fd, 1) == -1 && errno == EOPNOTSUPP);
	CHECK(CALL(accept, fd, NULL, NULL) == -1 && errno == EOPNOTSUPP);
	CHECK(CALL(close, fd) == 0);
	CHECK(CALL(sendto, fd, "x", 1, 0, &own.sa, length()) == -1 && errno == EBADF);
}

static void nobody_listens(void)
{
	address own, other;
	int fd = bound(&own), gone = bound(&other);
	char byte;

	CHECK(CALL(close, gone) == 0);
	CHECK(CALL(connect, fd, &other.sa, length()) == 0);
	CHECK(CALL(send, fd, "x", 1, 0) == 1);
	CHECK(ready(fd, POLLIN, 10000) & POLLERR);
	CHECK(CALL(recv, fd, &byte, 1, 0) == -1 && errno == ECONNREFUSED);
	CHECK(CALL(recv, fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(CALL(close, fd) == 0);
}

/* A receiver that does not read loses datagrams, and works again afterwards. */
static void more_than_a_receiver_holds(void)
{
	static char bytes[1000];
	address at_a, at_b;
	int a = bound(&at_a), b = bound(&at_b), got = 0;

	exchange(a, b, &at_b);
	for (int i = 0; i < 5000; i++)
		CHECK(CALL(sendto, a, bytes, sizeof bytes, 0, &at_b.sa, length()) == sizeof bytes);
	while (ready(b, POLLIN, 100) & POLLIN) {
		CHECK(CALL(recv, b, bytes, sizeof bytes, 0) == sizeof bytes);
		got++;
	}
	CHECK(got > 10 && got < 5000);
	exchange(a, b, &at_b);
	CHECK(CALL(close, a) == 0 && CALL(close, b) == 0);
}

static void *answer(void *argument)
{
	int fd = *(int *) argument;
	unsigned char buffer[LONGEST_V4];
	address from;
	ssize_t got;

	do {
		socklen_t len = sizeof from;

		got = CALL(recvfrom, fd, buffer, sizeof buffer, 0, &from.sa, &len);
		CHECK(got >= 0);
		CHECK(CALL(sendto, fd, buffer, got, 0, &from.sa, len) == got);
	} while (got > 0);
	return NULL;
}

static unsigned echoes = ECHOES;

static void *ask(void *argument)
{
	const address *to = argument;
	unsigned char sent[LONGEST_V4], got[LONGEST_V4];
	int fd = CALL(socket, family, SOCK_DGRAM, 0);

	CHECK(fd >= 0 && CALL(connect, fd, &to->sa, length()) == 0);
	for (unsigned i = 0; i < echoes; i++) {
		size_t len = 4 + i * 37 % 1600;

		fill(sent, len, i);
		memcpy(sent, &i, sizeof i);
		for (;;) {
			unsigned number;

			CHECK(CALL(send, fd, sent, len, 0) == (ssize_t) len);
			/* The answer to an earlier, repeated message may still arrive. */
			while (ready(fd, POLLIN, 200) & POLLIN) {
				ssize_t count = CALL(recv, fd, got, sizeof got, 0);

				CHECK(count >= 4);
				memcpy(&number, got, sizeof number);
				CHECK(number <= i);
				if (number == i) {
					CHECK(count == (ssize_t) len && !memcmp(sent, got, len));
					goto next;
				}
			}
		}
next:		;
	}
	CHECK(CALL(close, fd) == 0);
	return NULL;
}

static void many_threads(void)
{
	pthread_t server, clients[4];
	address at;
	int fd = bound(&at), last;

	CHECK(pthread_create(&server, NULL, answer, &fd) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&clients[i], NULL, ask, &at) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(clients[i], NULL) == 0);
	/* An empty datagram ends the server. */
	last = CALL(socket, family, SOCK_DGRAM, 0);
	CHECK(last >= 0 && CALL(sendto, last, NULL, 0, 0, &at.sa, length()) == 0);
	CHECK(pthread_join(server, NULL) == 0);
	CHECK(CALL(close, last) == 0 && CALL(close, fd) == 0);
}

/* An IPv6 socket at the wildcard address communicates with an IPv4 socket. */
static void both_families(void)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_addr = in6addr_any }, from;
	struct sockaddr_in to = { .sin_family = AF_INET };
	int six = CALL(socket, AF_INET6, SOCK_DGRAM, 0), four = CALL(socket, AF_INET, SOCK_DGRAM, 0), off = 0;
	socklen_t len = sizeof any;
	char buffer[16];

	CHECK(six >= 0 && four >= 0);
	CHECK(CALL(setsockopt, six, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0);
	CHECK(CALL(bind, six, (struct sockaddr *) &any, sizeof any) == 0);
	CHECK(CALL(getsockname, six, (struct sockaddr *) &any, &len) == 0);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	to.sin_port = any.sin6_port;
	for (int round = 0; round < 3; round++) {
		CHECK(CALL(sendto, four, "question", 8, 0, (struct sockaddr *) &to, sizeof to) == 8);
		len = sizeof from;
		CHECK(CALL(recvfrom, six, buffer, sizeof buffer, 0, (struct sockaddr *) &from, &len) == 8);
		CHECK(len == sizeof from && IN6_IS_ADDR_V4MAPPED(&from.sin6_addr));
		CHECK(CALL(sendto, six, "answer", 6, 0, (struct sockaddr *) &from, len) == 6);
		CHECK(CALL(recv, four, buffer, sizeof buffer, 0) == 6);
	}
	CHECK(CALL(close, six) == 0 && CALL(close, four) == 0);
}

/* Tests features that only rsockets have. */
static void sets_and_children(bool with_child)
{
	/* The header of this system does not declare these functions yet. */
	int (*create)(int) = dlsym(RTLD_DEFAULT, "repoll_create");
	int (*repoll_ctl)(int, int, int, struct epoll_event *) = dlsym(RTLD_DEFAULT, "repoll_ctl");
	int (*repoll_wait)(int, struct epoll_event *, int, int) = dlsym(RTLD_DEFAULT, "repoll_wait");
	address at_a, at_b;
	int a = bound(&at_a), b = bound(&at_b), set = create(0), pipes[2], status;
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 7 };
	char byte;

	CHECK(pipe(pipes) == 0);
	CHECK(repoll_ctl(set, EPOLL_CTL_ADD, a, &event) == 0);
	event.data.u32 = 8;
	CHECK(repoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &event) == 0);
	CHECK(repoll_wait(set, &event, 1, 10) == 0);
	for (int round = 0; round < 3; round++) {
		CHECK(rsendto(b, "x", 1, 0, &at_a.sa, length()) == 1);
		CHECK(repoll_wait(set, &event, 1, -1) == 1 && event.data.u32 == 7 && event.events == EPOLLIN);
		CHECK(rrecv(a, &byte, 1, 0) == 1);
	}
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(repoll_wait(set, &event, 1, -1) == 1 && event.data.u32 == 8);
	pid_t child = with_child ? fork() : -1;
	if (child == 0) {
		CHECK(rrecv(a, &byte, 1, MSG_DONTWAIT) == -1 && errno == EIO);
		CHECK(rclose(a) == 0 && rclose(b) == 0);
		/* The child creates rsockets of its own. */
		exchange((a = bound(&at_a), a), (b = bound(&at_b), b), &at_b);
		_exit(0);
	}
	if (with_child)
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	exchange(b, a, &at_a);
	CHECK(rclose(a) == 0 && rclose(b) == 0 && rclose(set) == 0);
	/* The port is free again in every process. */
	a = rsocket(family, SOCK_DGRAM, 0);
	CHECK(rbind(a, &at_a.sa, length()) == 0 && rclose(a) == 0);
	CHECK(rrecv(a, &byte, 1, 0) == -1 && errno == EBADF);
	/* A socket without an address cannot receive. */
	a = rsocket(family, SOCK_DGRAM, 0);
	CHECK(rrecv(a, &byte, 1, 0) == -1 && errno == EINVAL);
	CHECK(riomap(a, &byte, 1, 0, 0, -1) == -1 && errno == EOPNOTSUPP);
	CHECK(rclose(a) == 0);
	close(pipes[0]);
	close(pipes[1]);
}

static void all(void)
{
	sizes_and_sources();
	lists_and_cut_messages();
	one_peer();
	half_closed();
	without_waiting();
	options();
	nobody_listens();
	more_than_a_receiver_holds();
	many_threads();
	if (family == AF_INET6)
		both_families();
}

/* Prints each message and sends it back. */
static int say(void)
{
	address own, from;
	char buffer[4096], text[INET6_ADDRSTRLEN];
	int fd = bound(&own);

	printf("port %d\n", ntohs(port_of(&own)));
	fflush(stdout);
	for (;;) {
		socklen_t len = sizeof from;
		ssize_t got = rrecvfrom(fd, buffer, sizeof buffer, 0, &from.sa, &len);

		CHECK(got >= 0);
		CHECK(inet_ntop(AF_INET, &from.v4.sin_addr, text, sizeof text));
		printf("%zd bytes from %s:%d: %.*s\n", got, text, ntohs(from.v4.sin_port), (int) (got < 40 ? got : 40), buffer);
		fflush(stdout);
		(void) rsendto(fd, buffer, got, MSG_DONTWAIT, &from.sa, len);
	}
}

/* Runs one end of an echo between hosts, over IPv4. */
static int one_end(char **arguments)
{
	address at = loopback(htons(atoi(arguments[2])));
	int fd;

	CHECK(inet_pton(AF_INET, arguments[1], &at.v4.sin_addr) == 1);
	if (!strcmp(arguments[0], "ask")) {
		echoes = atoi(arguments[3]);
		ask(&at);
		puts("datagrams are as they should be");
		return 0;
	}
	fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	CHECK(fd >= 0 && rbind(fd, &at.sa, sizeof at.v4) == 0);
	answer(&fd);
	return 0;
}

int main(int argc, char **argv)
{
	bool only_udp = false, with_child = true;

	signal(SIGPIPE, SIG_IGN);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "say"))
			return say();
		if (!strcmp(argv[i], "ask") || !strcmp(argv[i], "answer"))
			return one_end(argv + i);
		only_udp |= !strcmp(argv[i], "udp");
		with_child &= strcmp(argv[i], "alone") != 0;
		echoes = !strcmp(argv[i], "few") ? ECHOES / 10 : echoes;
		family = !strcmp(argv[i], "ipv6") ? AF_INET6 : family;
	}
	rs = false;
	if (only_udp) {
		address own;
		int fd = bound(&own), value;
		socklen_t len = sizeof value;

		/* Only rsockets have this option. */
		if (getsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, &len) == 0)
			puts("sockets are rsockets");
		close(fd);
	}
	all();
	if (!only_udp) {
		rs = true;
		all();
		sets_and_children(with_child);
	}
	puts("datagrams are as they should be");
	return 0;
}
