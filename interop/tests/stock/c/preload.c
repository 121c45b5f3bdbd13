/* Tests every call of TCP sockets that librspreload.so replaces, in a program that knows only
 * TCP. The program also passes on the kernel's TCP. */
#define _GNU_SOURCE
#include "tcp.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>

extern char **environ;

/* Creates a connection and stores the connecting end and the accepting end. */
static void pair(int ends[2])
{
	union address at, name, peer;
	socklen_t len, name_len = sizeof name, peer_len = sizeof peer;
	int listener = listening(&at, &len);
	ends[0] = socket(family, SOCK_STREAM, IPPROTO_TCP);
	CHECK(ends[0] >= 0);
	CHECK(connect(ends[0], &at.any, len) == 0);
	ends[1] = accept4(listener, &peer.any, &peer_len, SOCK_CLOEXEC);
	CHECK(ends[1] >= 0 && peer_len == len);
	CHECK(getsockname(ends[0], &name.any, &name_len) == 0);
	CHECK(name_len == len && memcmp(&name, &peer, len) == 0);
	CHECK(getpeername(ends[0], &peer.any, &peer_len) == 0 && memcmp(&peer, &at, len) == 0);
	CHECK(getpeername(ends[1], &peer.any, &peer_len) == 0 && memcmp(&peer, &name, len) == 0);
	CHECK(close(listener) == 0);
}

static void unpair(int ends[2])
{
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
	FAILS(close(ends[0]), EBADF);
}

static void ends_with(int fd)
{
	char byte;
	CHECK(read(fd, &byte, 1) == 0);
}

/* The compiler does not know the length of the buffer, so a program compiled with fortification
 * checks it at run time. */
static void transfers(size_t size)
{
	int ends[2];
	char *to = malloc(size), *from = malloc(size);
	pair(ends);
	for (size_t i = 0; i < size; i++)
		from[i] = (char)(i * 7 + i / 256);
	CHECK(write(ends[0], from, size) == (ssize_t)size);
	CHECK(recv(ends[1], to, size, MSG_PEEK | MSG_WAITALL) > 0);
	CHECK(recvfrom(ends[1], to, size, MSG_WAITALL, NULL, NULL) == (ssize_t)size);
	CHECK(memcmp(from, to, size) == 0);
	struct iovec parts[3] = {{from, 1}, {from + 1, size / 2}, {from + 1 + size / 2, size - 1 - size / 2}};
	CHECK(writev(ends[1], parts, 3) == (ssize_t)size);
	memset(to, 0, size);
	for (size_t done = 0; done < size;) {
		struct iovec rest[2] = {{to + done, (size - done) / 2}, {to + done + (size - done) / 2, size - done - (size - done) / 2}};
		ssize_t got = readv(ends[0], rest, 2);
		CHECK(got > 0);
		done += got;
	}
	CHECK(memcmp(from, to, size) == 0);
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
	CHECK(sendmsg(ends[0], &message, 0) == (ssize_t)size);
	struct iovec one = {to, size};
	message = (struct msghdr){.msg_iov = &one, .msg_iovlen = 1};
	CHECK(recvmsg(ends[1], &message, MSG_WAITALL) == (ssize_t)size && memcmp(from, to, size) == 0);
	struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 2}}};
	CHECK(sendmmsg(ends[1], messages, 2, 0) == 2);
	CHECK(messages[0].msg_len == 1 && messages[1].msg_len == size - 1);
	memset(to, 0, size);
	struct iovec first = {to, 1}, second = {to + 1, size - 1};
	messages[0].msg_hdr = (struct msghdr){.msg_iov = &first, .msg_iovlen = 1};
	messages[1].msg_hdr = (struct msghdr){.msg_iov = &second, .msg_iovlen = 1};
	CHECK(recvmmsg(ends[0], messages, 2, MSG_WAITALL, NULL) == 2);
	CHECK(messages[1].msg_len == size - 1 && memcmp(from, to, size) == 0);
	FAILS(recv(ends[0], to, size, MSG_DONTWAIT), EAGAIN);
	FAILS(sendmmsg(ends[1], NULL, 1, 0), EFAULT);
	FAILS(recvmmsg(ends[0], NULL, 1, 0, NULL), EFAULT);
	unpair(ends);
	free(to);
	free(from);
}

/* Receives several messages by one call, also at the end of the stream. */
static void messages(void)
{
	int ends[2];
	char to[3];
	struct timespec none = {0}, invalid = {.tv_nsec = -1};
	struct iovec parts[3] = {{to, 1}, {to + 1, 1}, {to + 2, 1}};
	struct mmsghdr messages[3] = {0};
	pair(ends);
	for (int i = 0; i < 3; i++)
		messages[i].msg_hdr = (struct msghdr){.msg_iov = parts + i, .msg_iovlen = 1};
	CHECK(write(ends[0], "abc", 3) == 3 && shutdown(ends[0], SHUT_WR) == 0);
	/* The timeout is checked after each message. */
	FAILS(recvmmsg(ends[1], messages, 3, 0, &invalid), EINVAL);
	CHECK(recvmmsg(ends[1], messages, 3, 0, &none) == 1 && messages[0].msg_len == 1 && to[0] == 'a');
	CHECK(recvmmsg(ends[1], messages, 3, 0, NULL) == 3 && messages[1].msg_len == 1 && to[1] == 'c');
	CHECK(messages[2].msg_len == 0 && recvmmsg(ends[1], messages, 3, 0, NULL) == 3 && messages[0].msg_len == 0);
	unpair(ends);
}

static void flags_and_options(void)
{
	int ends[2], on = 1, value = 0;
	socklen_t len = sizeof value;
	struct timeval time = {.tv_usec = 20000};
	char byte;
	struct stat status;
	pair(ends);
	CHECK(fstat(ends[0], &status) == 0 && S_ISSOCK(status.st_mode));
	CHECK(fcntl(ends[0], F_SETFL, fcntl(ends[0], F_GETFL) | O_NONBLOCK) == 0);
	CHECK(fcntl(ends[0], F_GETFL) & O_NONBLOCK);
	FAILS(read(ends[0], &byte, 1), EAGAIN);
	CHECK(ioctl(ends[1], FIONBIO, &on) == 0);
	FAILS(read(ends[1], &byte, 1), EAGAIN);
	on = 0;
	CHECK(ioctl(ends[1], FIONBIO, &on) == 0 && !(fcntl(ends[1], F_GETFL) & O_NONBLOCK));
	CHECK(send(ends[0], "12345", 5, 0) == 5);
	CHECK(recv(ends[1], &byte, 1, 0) == 1 && ioctl(ends[1], FIONREAD, &value) == 0 && value == 4);
	CHECK(fcntl(ends[0], F_SETFD, FD_CLOEXEC) == 0 && fcntl(ends[0], F_GETFD) == FD_CLOEXEC);
	on = 1;
	CHECK(setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
	CHECK(getsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0 && value == 1);
	CHECK(getsockopt(ends[0], SOL_SOCKET, SO_TYPE, &value, &len) == 0 && value == SOCK_STREAM);
	CHECK(getsockopt(ends[0], SOL_SOCKET, SO_ERROR, &value, &len) == 0 && value == 0);
	CHECK(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
	CHECK(read(ends[1], (char[8]){0}, 8) == 4);
	FAILS(read(ends[1], &byte, 1), EAGAIN);
	/* A read into an empty buffer does not wait. */
	struct iovec none[2] = {{&byte, 0}, {&byte, 0}};
	CHECK(read(ends[1], &byte, 0) == 0 && readv(ends[1], none, 2) == 0 && readv(ends[1], none, 0) == 0);
	unpair(ends);
}

static void duplicates(void)
{
	int ends[2], more[4];
	pair(ends);
	more[0] = dup(ends[0]);
	more[1] = fcntl(ends[0], F_DUPFD_CLOEXEC, 50);
	more[2] = open("/dev/null", O_RDONLY);
	CHECK(dup2(ends[0], more[2]) == more[2]);
	more[3] = open("/dev/null", O_RDONLY);
	CHECK(dup3(ends[0], more[3], O_CLOEXEC) == more[3] && more[1] >= 50);
	CHECK(close(ends[0]) == 0);
	for (int i = 0; i < 4; i++) {
		crosses(more[i], ends[1]);
		crosses(ends[1], more[i]);
	}
	CHECK(close(more[0]) == 0 && close(more[1]) == 0);
	/* A descriptor replaces a duplicate of a socket, and a socket replaces the last duplicate of
	 * another socket. */
	int file = open("/dev/null", O_RDWR), other[2];
	CHECK(dup2(file, more[2]) == more[2] && write(more[2], "x", 1) == 1);
	pair(other);
	CHECK(dup2(other[0], more[3]) == more[3]);
	ends_with(ends[1]);
	crosses(more[3], other[1]);
	CHECK(close(more[3]) == 0 && close(more[2]) == 0 && close(file) == 0);
	crosses(other[0], other[1]);
	unpair(other);
	CHECK(close(ends[1]) == 0);
	/* The descriptor is duplicated before its first use. */
	pair(ends);
	more[0] = dup(ends[1]);
	CHECK(close(ends[1]) == 0);
	crosses(ends[0], more[0]);
	ends[1] = more[0];
	unpair(ends);
}

static void waits(void)
{
	int ends[2], ordinary[2];
	char byte = 0;
	pair(ends);
	CHECK(pipe(ordinary) == 0);
	struct pollfd fds[3] = {{.fd = ends[1], .events = POLLIN}, {.fd = ordinary[0], .events = POLLIN}, {.fd = -1}};
	CHECK(poll(fds, 3, 10) == 0);
	CHECK(write(ordinary[1], "a", 1) == 1);
	CHECK(poll(fds, 3, -1) == 1 && fds[1].revents == POLLIN && fds[0].revents == 0);
	CHECK(write(ends[0], "b", 1) == 1);
	struct timespec second = {.tv_sec = 1};
	while (poll(fds, 1, -1) != 1) {}
	CHECK(ppoll(fds, 3, &second, NULL) == 2 && fds[0].revents == POLLIN);
	CHECK(read(ordinary[0], &byte, 1) == 1 && byte == 'a');

	fd_set read_set, write_set;
	FD_ZERO(&read_set);
	FD_ZERO(&write_set);
	FD_SET(ends[1], &read_set);
	FD_SET(ordinary[0], &read_set);
	FD_SET(ends[0], &write_set);
	int most = (ends[0] > ends[1] ? ends[0] : ends[1]) > ordinary[0] ? (ends[0] > ends[1] ? ends[0] : ends[1]) : ordinary[0];
	CHECK(select(most + 1, &read_set, &write_set, NULL, NULL) == 2);
	CHECK(FD_ISSET(ends[1], &read_set) && FD_ISSET(ends[0], &write_set) && !FD_ISSET(ordinary[0], &read_set));
	CHECK(read(ends[1], &byte, 1) == 1 && byte == 'b');
	FD_SET(ordinary[0], &read_set);
	struct timespec little = {.tv_nsec = 10000000};
	CHECK(pselect(most + 1, &read_set, NULL, NULL, &little, NULL) == 0);
	/* As the kernel's, select stores the remaining time. */
	struct timeval left = {.tv_sec = 100};
	FD_SET(ends[0], &write_set);
	CHECK(select(most + 1, NULL, &write_set, NULL, &left) == 1 && left.tv_sec > 0 && left.tv_sec < 100);
	left = (struct timeval){.tv_usec = 10000};
	FD_SET(ends[1], &read_set);
	CHECK(select(most + 1, &read_set, NULL, NULL, &left) == 0 && left.tv_sec == 0 && left.tv_usec == 0);

	CHECK(shutdown(ends[0], SHUT_WR) == 0);
	fds[0].events = POLLIN | POLLRDHUP;
	CHECK(poll(fds, 1, -1) == 1 && fds[0].revents & POLLIN && fds[0].revents & POLLRDHUP);
	ends_with(ends[1]);
	crosses(ends[1], ends[0]);
	signal(SIGPIPE, SIG_IGN);
	FAILS(write(ends[0], "x", 1), EPIPE);
	unpair(ends);
	CHECK(close(ordinary[0]) == 0 && close(ordinary[1]) == 0);
}

static int wait_one(int set, uint64_t *data)
{
	struct epoll_event events[4];
	int found = epoll_wait(set, events, 4, -1);
	CHECK(found == 1);
	*data = events[0].data.u64;
	return events[0].events;
}

static void sets(void)
{
	int ends[2], ordinary[2], set = epoll_create1(EPOLL_CLOEXEC);
	uint64_t data;
	char byte;
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1}, events[8];
	pair(ends);
	CHECK(pipe(ordinary) == 0 && set >= 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ordinary[0], &event) == 0);
	event.data.u64 = 2;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
	FAILS(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event), EEXIST);
	CHECK(epoll_wait(set, events, 8, 10) == 0);
	CHECK(write(ordinary[1], "a", 1) == 1);
	CHECK(wait_one(set, &data) == EPOLLIN && data == 1);
	CHECK(read(ordinary[0], &byte, 1) == 1);
	CHECK(write(ends[0], "b", 1) == 1);
	CHECK(wait_one(set, &data) == EPOLLIN && data == 2);
	/* The event is reported as long as the byte is unread. */
	CHECK(wait_one(set, &data) == EPOLLIN && data == 2);
	CHECK(read(ends[1], &byte, 1) == 1 && byte == 'b');
	CHECK(epoll_pwait(set, events, 8, 0, NULL) == 0);
	struct timespec little = {.tv_nsec = 5000000};
	int found = epoll_pwait2(set, events, 8, &little, NULL);
	CHECK(found == 0 || (found == -1 && errno == ENOSYS));
	event = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 3};
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, ends[1], &event) == 0);
	CHECK(write(ends[0], "cd", 2) == 2);
	CHECK(wait_one(set, &data) == EPOLLIN && data == 3);
	CHECK(epoll_wait(set, events, 8, 10) == 0);
	event.events = EPOLLIN | EPOLLET;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, ends[1], &event) == 0);
	CHECK(wait_one(set, &data) == EPOLLIN && data == 3);
	CHECK(epoll_wait(set, events, 8, 10) == 0);
	CHECK(write(ends[0], "e", 1) == 1);
	CHECK(wait_one(set, &data) == EPOLLIN);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, ends[1], NULL) == 0);
	FAILS(epoll_ctl(set, EPOLL_CTL_MOD, ends[1], &event), ENOENT);
	CHECK(epoll_wait(set, events, 8, 0) == 0);
	/* A closed socket is removed from all sets. */
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
	unpair(ends);
	CHECK(epoll_wait(set, events, 8, 10) == 0);
	CHECK(close(set) == 0 && close(ordinary[0]) == 0 && close(ordinary[1]) == 0);
}

/* An IPv6 listener that accepts IPv4 connections reports only IPv6 addresses. */
static void mapped_addresses(void)
{
	union address at, peer, name;
	socklen_t len = sizeof at, peer_len = sizeof peer, name_len = sizeof name;
	int off = 0, listener = socket(AF_INET6, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0), before = family;
	if (listener < 0)
		return;
	memset(&at, 0, sizeof at);
	at.v6.sin6_family = AF_INET6;
	CHECK(setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0);
	CHECK(bind(listener, &at.any, sizeof at.v6) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, &at.any, &len) == 0 && len == sizeof at.v6);
	family = AF_INET;
	len = loopback(&name, at.v6.sin6_port);
	family = before;
	CHECK(connect(fd, &name.any, len) == 0);
	int accepted = accept(listener, &peer.any, &peer_len);
	CHECK(accepted >= 0 && peer_len == sizeof peer.v6 && IN6_IS_ADDR_V4MAPPED(&peer.v6.sin6_addr));
	crosses(fd, accepted);
	CHECK(getpeername(accepted, &name.any, &name_len) == 0);
	CHECK(name_len == peer_len && memcmp(&name, &peer, name_len) == 0);
	CHECK(getsockname(accepted, &name.any, &name_len) == 0 && IN6_IS_ADDR_V4MAPPED(&name.v6.sin6_addr));
	CHECK(close(fd) == 0 && close(accepted) == 0 && close(listener) == 0);
}

/* A non-blocking socket is added to a set before it connects; the listener is in the same set. */
static void connects_in_a_set(void)
{
	union address at;
	socklen_t len, size = sizeof(int);
	int error, accepted = -1, connected = 0, set = epoll_create1(0);
	int listener = listening(&at, &len), fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
	struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[4];
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
	event = (struct epoll_event){.events = EPOLLOUT, .data.fd = fd};
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	CHECK(connect(fd, &at.any, len) == 0 || errno == EINPROGRESS);
	while (accepted < 0 || !connected) {
		int found = epoll_wait(set, events, 4, -1);
		CHECK(found > 0);
		for (int i = 0; i < found; i++) {
			if (events[i].data.fd == listener) {
				accepted = accept(listener, NULL, NULL);
				CHECK(accepted >= 0);
				event = (struct epoll_event){.events = EPOLLIN, .data.fd = accepted};
				CHECK(epoll_ctl(set, EPOLL_CTL_ADD, accepted, &event) == 0);
			} else if (events[i].data.fd == fd && events[i].events == EPOLLOUT) {
				/* EPOLLHUP must not be set; it is reported for a socket that is not connecting. */
				connected = 1;
			}
		}
	}
	CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0);
	CHECK(fcntl(fd, F_SETFL, 0) == 0);
	crosses(fd, accepted);
	crosses(accepted, fd);
	CHECK(close(fd) == 0 && close(accepted) == 0 && close(listener) == 0 && close(set) == 0);
}

/* The first call on a connection asks for the number of bytes that have arrived. */
static void counts_unused(void)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), client = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), server;
	int value = -1;

	/* Without an address, accept does not read the length. */
	CHECK(connect(client, &at.any, len) == 0 && (server = accept(listener, NULL, (void *)1)) >= 0);
	CHECK(ioctl(server, FIONREAD, &value) == 0 && value == 0);
	CHECK(send(client, "123", 3, 0) == 3);
	CHECK(poll(&(struct pollfd){server, POLLIN, 0}, 1, -1) == 1);
	CHECK(ioctl(server, FIONREAD, &value) == 0 && value == 3);
	CHECK(close(client) == 0 && close(server) == 0 && close(listener) == 0);
}

/* The first call on a connection shuts down one direction. */
static void closes_unused(int how)
{
	union address at;
	socklen_t len;
	char bytes[5];
	int listener = listening(&at, &len), client = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), server;
	struct pollfd one = {.fd = client, .events = POLLIN | POLLRDHUP};

	CHECK(connect(client, &at.any, len) == 0 && (server = accept(listener, NULL, NULL)) >= 0);
	CHECK(shutdown(client, how) == 0);
	if (how != SHUT_WR)
		CHECK(poll(&one, 1, 0) == 1 && (one.revents & one.events) == one.events);
	if (how != SHUT_RD) {
		ends_with(server);
		FAILS(send(client, "x", 1, MSG_NOSIGNAL), EPIPE);
	}
	if (how == SHUT_WR) {
		CHECK(send(server, "12345", 5, MSG_NOSIGNAL) == 5);
		CHECK(recv(client, bytes, 5, MSG_WAITALL) == 5);
	} else {
		ends_with(client);
	}
	CHECK(close(client) == 0 && close(server) == 0);
	client = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(connect(client, &at.any, len) == 0 && (server = accept(listener, NULL, NULL)) >= 0);
	CHECK(shutdown(server, how) == 0);
	if (how != SHUT_RD)
		ends_with(client);
	CHECK(close(client) == 0 && close(server) == 0 && close(listener) == 0);
}

/* A listener whose queue is full does not answer. */
static void gives_up_connecting(void)
{
	union address at;
	socklen_t len, size = sizeof(int);
	int error = 0, listener = listening(&at, &len), clients[4];
	struct pollfd one = {.events = POLLOUT};

	CHECK(listen(listener, 0) == 0);
	for (int i = 0; i < 4; i++) {
		clients[i] = one.fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
		FAILS(connect(one.fd, &at.any, len), EINPROGRESS);
	}
	CHECK(poll(&one, 1, 0) == 0 && shutdown(one.fd, SHUT_RDWR) == 0);
	CHECK(poll(&one, 1, 0) == 1 && one.revents == (POLLOUT | POLLERR | POLLHUP));
	CHECK(getsockopt(one.fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == ECONNRESET);
	FAILS(shutdown(one.fd, SHUT_RDWR), ENOTCONN);
	CHECK(close(listener) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(close(clients[i]) == 0);
}

/* A program may start before its server, and repeat the connect on the same socket. */
static void connects_again(void)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), on = 1, client, server, attempts;

	close(listener);
	client = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	for (attempts = 0; attempts < 3; attempts++)
		FAILS(connect(client, &at.any, len), ECONNREFUSED);
	listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	CHECK(bind(listener, &at.any, len) == 0 && listen(listener, 16) == 0);
	CHECK(connect(client, &at.any, len) == 0);
	CHECK((server = accept(listener, NULL, NULL)) >= 0);
	crosses(client, server);
	crosses(server, client);
	close(client);
	ends_with(server);
	close(server);
	close(listener);
}

static void refusals(void)
{
	union address at;
	socklen_t len, size = sizeof(int);
	int error = 0, nobody = listening(&at, &len), fd = socket(family, SOCK_STREAM, 0);
	CHECK(close(nobody) == 0);
	FAILS(connect(fd, &at.any, len), ECONNREFUSED);
	CHECK(close(fd) == 0);
	fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (connect(fd, &at.any, len) == -1 && errno == EINPROGRESS) {
		struct pollfd one = {.fd = fd, .events = POLLOUT};
		CHECK(poll(&one, 1, -1) == 1);
		CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == ECONNREFUSED);
	} else {
		CHECK(errno == ECONNREFUSED);
	}
	CHECK(close(fd) == 0);
	fd = socket(family, SOCK_STREAM, 0);
	FAILS(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
	FAILS(getpeername(fd, &at.any, &len), ENOTCONN);
	CHECK(close(fd) == 0);
}

/* A single thread sends before it accepts. */
static void sends_early(void)
{
	union address at;
	socklen_t len;
	char got[16];
	int listener = listening(&at, &len), fd = socket(family, SOCK_STREAM, 0);
	CHECK(connect(fd, &at.any, len) == 0);
	CHECK(write(fd, "early", 5) == 5 && write(fd, " bird", 5) == 5);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	int accepted = accept(listener, NULL, NULL);
	CHECK(recv(accepted, got, 10, MSG_WAITALL) == 10 && memcmp(got, "early bird", 10) == 0);
	ends_with(accepted);
	crosses(accepted, fd);
	CHECK(close(fd) == 0 && close(accepted) == 0);
	/* The thread also closes before it accepts. */
	fd = socket(family, SOCK_STREAM, 0);
	CHECK(connect(fd, &at.any, len) == 0);
	CHECK(write(fd, "gone", 4) == 4 && close(fd) == 0);
	accepted = accept(listener, NULL, NULL);
	CHECK(recv(accepted, got, 4, MSG_WAITALL) == 4 && memcmp(got, "gone", 4) == 0);
	ends_with(accepted);
	CHECK(close(accepted) == 0 && close(listener) == 0);
}

static void files(void)
{
	int ends[2], file = open("/proc/self/exe", O_RDONLY);
	off_t at = 100;
	char sent[3000], got[3000];
	pair(ends);
	CHECK(sendfile(ends[0], file, &at, sizeof sent) == sizeof sent && at == 3100);
	CHECK(recv(ends[1], got, sizeof got, MSG_WAITALL) == sizeof got);
	CHECK(pread(file, sent, sizeof sent, 100) == sizeof sent && memcmp(sent, got, sizeof got) == 0);
	CHECK(lseek(file, 0, SEEK_CUR) == 0 && lseek(file, 50, SEEK_SET) == 50);
	CHECK(sendfile(ends[1], file, NULL, sizeof sent) == sizeof sent);
	CHECK(recv(ends[0], got, sizeof got, MSG_WAITALL) == sizeof got);
	CHECK(pread(file, sent, sizeof sent, 50) == sizeof sent && memcmp(sent, got, sizeof got) == 0);
	CHECK(lseek(file, 0, SEEK_CUR) == 3050 && close(file) == 0);
	FAILS(sendfile(ends[1], -1, NULL, 1), EBADF);
	unpair(ends);
}

static void closes_many(void)
{
	int one[2], two[2];
	pair(one);
	crosses(one[0], one[1]);
	/* The system assigns the lowest free number. */
	pair(two);
	CHECK(fcntl(two[0], F_DUPFD, 200) == 200 && close(two[0]) == 0);
	CHECK(fcntl(one[0], F_DUPFD, 201) == 201 && close(one[0]) == 0);
	crosses(201, one[1]);
	CHECK(close_range(200, 210, 0) == 0);
	ends_with(one[1]);
	ends_with(two[1]);
	CHECK(close(one[1]) == 0 && close(two[1]) == 0);
}

/* Opens a file with the number of a closed socket. */
static int file_at(int number)
{
	int file = memfd_create("file", 0), found;
	CHECK(file >= 0 && file <= number);
	if (file == number)
		return file;
	found = file_at(number);
	CHECK(close(file) == 0);
	return found;
}

static void is_ordinary(int file)
{
	char got[8];
	CHECK(write(file, "private", 7) == 7 && lseek(file, 0, SEEK_SET) == 0);
	CHECK(read(file, got, sizeof got) == 7 && memcmp(got, "private", 7) == 0);
}

/* Closes sockets by calls within the C library and by direct system calls. */
static void closes_unseen(void)
{
	int ends[2], file;
	union address at, name;
	socklen_t len;
	FILE *stream;
	pair(ends);
	crosses(ends[0], ends[1]);
	CHECK((stream = fdopen(ends[0], "r+")) && fclose(stream) == 0);
	/* The peer must notice at once, not only when the number is used again. */
	ends_with(ends[1]);
	CHECK((file = file_at(ends[0])) >= 0);
	is_ordinary(file);
	CHECK(close(file) == 0 && close(ends[1]) == 0);
	pair(ends);
	crosses(ends[0], ends[1]);
	CHECK((stream = fdopen(ends[0], "r+")) && (stream = freopen("/dev/zero", "r", stream)) && fgetc(stream) == 0);
	ends_with(ends[1]);
	CHECK(read(fileno(stream), &(char){1}, 1) == 1 && fclose(stream) == 0 && close(ends[1]) == 0);

	pair(ends);
	crosses(ends[0], ends[1]);
	CHECK(syscall(SYS_close, ends[0]) == 0 && (file = file_at(ends[0])) >= 0);
	is_ordinary(file);
	ends_with(ends[1]);
	CHECK(close(file) == 0 && close(ends[1]) == 0);
	/* The socket is closed before its first use. */
	pair(ends);
	CHECK(syscall(SYS_close, ends[1]) == 0 && (file = file_at(ends[1])) >= 0);
	is_ordinary(file);
	CHECK(close(file) == 0 && close(ends[0]) == 0);
	/* The socket is closed before it has an address. */
	int old = socket(family, SOCK_STREAM, 0), fd;
	CHECK(syscall(SYS_close, old) == 0 && (fd = socket(family, SOCK_DGRAM, 0)) == old);
	len = loopback(&at, htons(9));
	CHECK(connect(fd, &at.any, len) == 0 && syscall(SYS_getpeername, fd, &name, &len) == 0 && memcmp(&at, &name, len) == 0);
	CHECK(close(fd) == 0);
}

/* A child takes over a connection that was accepted but not used; a used connection stays with
 * the parent. */
static void forks(void)
{
	int ends[2], used[2], status;
	pair(ends);
	pair(used);
	crosses(used[0], used[1]);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(close(used[0]) == 0 && close(used[1]) == 0 && close(ends[0]) == 0);
		crosses(ends[1], ends[1]);
		CHECK(close(ends[1]) == 0);
		_exit(0);
	}
	CHECK(close(ends[1]) == 0);
	char got[6];
	CHECK(recv(ends[0], got, sizeof got, MSG_WAITALL) == 6);
	CHECK(send(ends[0], got, sizeof got, 0) == 6);
	ends_with(ends[0]);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	crosses(used[1], used[0]);
	/* posix_spawn may run the child in the memory of this process, where it closes its descriptors. */
	char *arguments[] = {"true", NULL};
	posix_spawn_file_actions_t actions;
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_addclose(&actions, used[0]) == 0);
	CHECK(posix_spawn_file_actions_addclosefrom_np(&actions, 3) == 0);
	CHECK(posix_spawnp(&child, "true", &actions, NULL, arguments, environ) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	posix_spawn_file_actions_destroy(&actions);
	child = vfork();
	if (child == 0) {
		close(used[0]);
		dup2(used[1], 300);
		close_range(3, ~0U, 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	crosses(used[0], used[1]);
	FAILS(close(300), EBADF);
	unpair(used);
	CHECK(close(ends[0]) == 0);
}

static void nothing(int number)
{
	(void)number;
}

static void signals_come(void)
{
	int ends[2];
	char byte;
	sigset_t all, before;
	struct sigaction action = {.sa_handler = nothing};
	/* The timer repeats, because the first signal may come before a thread that was not scheduled
	 * has begun to read. */
	struct itimerval soon = {.it_value.tv_usec = 30000, .it_interval.tv_usec = 30000}, never = {0};
	pair(ends);
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
	FAILS(read(ends[0], &byte, 1), EINTR);
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	/* The signal is blocked except during the wait. */
	CHECK(sigfillset(&all) == 0 && sigprocmask(SIG_SETMASK, &all, &before) == 0);
	CHECK(raise(SIGALRM) == 0);
	struct pollfd one = {.fd = ends[0], .events = POLLIN};
	CHECK(poll(&one, 1, 10) == 0);
	FAILS(ppoll(&one, 1, NULL, &before), EINTR);
	int set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN};
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
	CHECK(raise(SIGALRM) == 0);
	FAILS(epoll_pwait(set, &event, 1, -1, &before), EINTR);
	CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0 && close(set) == 0);
	unpair(ends);
}

static void *sleeps(void *fds)
{
	char byte;
	if (((int *)fds)[1])
		poll(&(struct pollfd){.fd = *(int *)fds, .events = POLLIN}, 1, -1);
	else if (read(*(int *)fds, &byte, 1) < 0)
		return NULL;
	return NULL;
}

/* Threads can be cancelled while they wait in other calls. */
static void cancels(void)
{
	int ordinary[2];
	CHECK(pipe(ordinary) == 0);
	for (int polls = 0; polls < 2; polls++) {
		pthread_t thread;
		void *result;
		int fds[2] = {ordinary[0], polls};
		CHECK(pthread_create(&thread, NULL, sleeps, fds) == 0);
		usleep(1000);
		CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	}
	CHECK(close(ordinary[0]) == 0 && close(ordinary[1]) == 0);
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		family = AF_INET6;
	transfers(2);
	transfers(70000);
	messages();
	flags_and_options();
	duplicates();
	waits();
	sets();
	connects_in_a_set();
	mapped_addresses();
	refusals();
	gives_up_connecting();
	connects_again();
	counts_unused();
	closes_unused(SHUT_WR);
	closes_unused(SHUT_RDWR);
	closes_unused(SHUT_RD);
	sends_early();
	files();
	closes_many();
	closes_unseen();
	forks();
	signals_come();
	cancels();
	puts("sockets are as they should be");
	return 0;
}
