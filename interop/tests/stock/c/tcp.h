/* Checks used by programs of TCP sockets. */
#ifndef TCP_H
#define TCP_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(condition)                                                                    \
	do {                                                                                    \
		if (!(condition)) {                                                                 \
			fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #condition);             \
			exit(1);                                                                        \
		}                                                                                   \
	} while (0)
#define FAILS(call, number) CHECK((call) == -1 && errno == (number))

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

__attribute__((unused)) static int family = AF_INET;

static inline socklen_t loopback(union address *at, int port)
{
	memset(at, 0, sizeof *at);
	if (family == AF_INET6) {
		at->v6.sin6_family = AF_INET6;
		at->v6.sin6_addr = in6addr_loopback;
		at->v6.sin6_port = port;
		return sizeof at->v6;
	}
	at->v4.sin_family = AF_INET;
	at->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	at->v4.sin_port = port;
	return sizeof at->v4;
}

static inline int listening(union address *at, socklen_t *len)
{
	int on = 1, fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0);
	*len = loopback(at, 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	CHECK(bind(fd, &at->any, *len) == 0);
	CHECK(listen(fd, 16) == 0);
	CHECK(getsockname(fd, &at->any, len) == 0);
	return fd;
}

static inline void crosses(int from, int to)
{
	char got[6];
	CHECK(send(from, "cross", 6, MSG_NOSIGNAL) == 6);
	CHECK(recv(to, got, sizeof got, MSG_WAITALL) == 6 && memcmp(got, "cross", 6) == 0);
}

#endif
