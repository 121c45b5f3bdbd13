/* A program of TCP sockets forks while its threads use connections; each child opens its own
 * connections. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                    \
	do {                                                                                    \
		if (!(condition)) {                                                                 \
			fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #condition);             \
			_exit(1);                                                                       \
		}                                                                                   \
	} while (0)

static struct sockaddr_in address;
static atomic_int over;
static atomic_long rounds;

static void *echo(void *argument)
{
	int fd = (int)(long)argument;
	char buffer[4096];
	for (;;) {
		ssize_t len = read(fd, buffer, sizeof buffer);
		CHECK(len >= 0);
		if (len == 0)
			break;
		for (ssize_t done = 0; done < len;) {
			ssize_t sent = write(fd, buffer + done, len - done);
			CHECK(sent > 0);
			done += sent;
		}
	}
	CHECK(close(fd) == 0);
	return NULL;
}

static void *serve(void *argument)
{
	int listener = (int)(long)argument;
	for (;;) {
		pthread_t thread;
		int fd = accept(listener, NULL, NULL);
		CHECK(fd >= 0);
		CHECK(pthread_create(&thread, NULL, echo, (void *)(long)fd) == 0);
		CHECK(pthread_detach(thread) == 0);
	}
}

static void listen_at(struct sockaddr_in *at)
{
	pthread_t thread;
	socklen_t len = sizeof *at;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(listener >= 0);
	*at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	CHECK(bind(listener, (struct sockaddr *)at, sizeof *at) == 0);
	CHECK(listen(listener, 64) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)at, &len) == 0);
	CHECK(pthread_create(&thread, NULL, serve, (void *)(long)listener) == 0);
}

static int connect_to(const struct sockaddr_in *at)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	CHECK(connect(fd, (const struct sockaddr *)at, sizeof *at) == 0);
	return fd;
}

static void ask(int fd, int round)
{
	char sent[777], got[777];
	memset(sent, round, sizeof sent);
	CHECK(send(fd, sent, sizeof sent, 0) == sizeof sent);
	CHECK(recv(fd, got, sizeof got, MSG_WAITALL) == sizeof got);
	CHECK(memcmp(sent, got, sizeof got) == 0);
}

static void *busy(void *argument)
{
	int fd = connect_to(&address);
	(void)argument;
	for (int round = 0; !over; round++) {
		ask(fd, round);
		rounds++;
	}
	CHECK(close(fd) == 0);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[4];
	int forks = argc > 1 ? atoi(argv[1]) : 20;
	listen_at(&address);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, busy, NULL) == 0);
	for (int i = 0; i < forks; i++) {
		long before = rounds;
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			struct sockaddr_in own;
			listen_at(&own);
			/* The child connects to its own listener and to the parent's. */
			int first = connect_to(&own), second = connect_to(&address);
			for (int round = 0; round < 20; round++) {
				ask(first, round);
				ask(second, round);
			}
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(status == 0);
		/* The parent's connections must continue to work. */
		while (rounds < before + 4)
			usleep(100);
	}
	over = 1;
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	puts("forks are as they should be");
	return 0;
}
