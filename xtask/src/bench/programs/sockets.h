/* Plain TCP over loopback, for references. */
#ifndef UIW_BENCH_SOCKETS_H
#define UIW_BENCH_SOCKETS_H

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static inline int checked(int result, const char *what)
{
	if (result < 0) {
		perror(what);
		exit(EXIT_FAILURE);
	}
	return result;
}

static inline int new_socket(void)
{
	return checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
}

static inline struct sockaddr_in loopback_port(uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

/* Segments leave at once. */
static inline void set_nodelay(int fd)
{
	const int on = 1;

	checked(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "TCP_NODELAY");
}

static inline int listen_tcp(uint16_t *port)
{
	struct sockaddr_in address = loopback_port(0);
	socklen_t length = sizeof address;
	int fd = new_socket();

	checked(bind(fd, (struct sockaddr *)&address, length), "bind");
	checked(listen(fd, 64), "listen");
	checked(getsockname(fd, (struct sockaddr *)&address, &length), "getsockname");
	*port = ntohs(address.sin_port);
	return fd;
}

static inline int accept_tcp(int listener)
{
	int fd = checked(accept(listener, NULL, NULL), "accept");

	set_nodelay(fd);
	return fd;
}

static inline int connect_tcp(uint16_t port)
{
	struct sockaddr_in address = loopback_port(port);
	int fd = new_socket();

	checked(connect(fd, (struct sockaddr *)&address, sizeof address), "connect");
	set_nodelay(fd);
	return fd;
}

static inline int watch(int set, int fd, uint32_t events, uint64_t number)
{
	struct epoll_event event = { .events = events, .data.u64 = number };

	return checked(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

#endif
